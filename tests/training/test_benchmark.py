"""The learner's numbers by hand, and which updates count."""

import pytest
from rich.console import Console

from diversed.evaluation.benchmark import Spread
from diversed.training import benchmark


def test_learner_numbers_by_hand():
    rows = [
        {"seconds_rollouts": 3.0 * slow, "seconds_learner": 1.0 * slow, "output_tokens": 30.0} for slow in (1, 2, 1)
    ]
    report = benchmark.learner_report(rows, rollouts=8)
    (row,) = report.tables["learner"]
    assert row["updates_per_second"] == pytest.approx(0.25)
    assert row["rollout_tokens_per_second"] == pytest.approx(80.0)
    assert row["learner_share"] == Spread(0.25, 0.25, 0.25, 0.25, 0.25)
    assert all(name in report.columns for name in row if name != "name")


def test_the_first_update_is_left_out(monkeypatch, settings, pair, task, engines):
    monkeypatch.setattr(benchmark, "build_engine", lambda _pair, *arguments: engines(*arguments))
    small = settings.updated({"benchmark.repetitions": 3})
    report = benchmark.measure_learner(small, pair, task, Console(quiet=True))
    assert [row["update"] for row in report.samples["update"]] == [2, 3, 4]
    assert report.about["prompts"] == 4
    (engine,) = engines.made
    assert [len(requests) for requests in engine.calls] == [12, 12, 12, 12]
    assert len({request.seed for requests in engine.calls for request in requests}) == 48
