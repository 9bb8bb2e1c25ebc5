"""Runs end as what happened, come back by their key, and keep what they are given."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from mlflow.entities import Run

from diversed.errors import TrackingError
from diversed.settings import Settings
from diversed.tracking import Tracker
from diversed.tracking.runs import PARAM_LENGTH, search_all


@pytest.fixture(autouse=True)
def plain_mlflow(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_table` asks MLflow's global store, as a user's notebook would."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", settings.tracking_uri)


def stored(tracker: Tracker, run_id: str) -> Run:
    return tracker.client.get_run(run_id)


def running(tracker: Tracker) -> list[Run]:
    return search_all(tracker.client, tracker.experiment_id, "attributes.status = 'RUNNING'")


def test_finished_run_keeps_everything(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    rows = [{"method": "strict", "cap": float("inf")}, {"method": "diversed", "speed": 1.5}]
    with tracker.run("one", tags={"stage": "test"}) as run:
        assert stored(tracker, run.id).info.status == "RUNNING"
        run.log_metrics({"quality": 0.5, "ok": True}, step=3)
        run.log_metrics({"quality": 0.75}, step=4)
        run.log_params({"extra": {"nested": 1}, "long": "x" * 9000})
        run.log_table(rows, "table.json")
        figure, _ = plt.subplots()
        run.log_figure(figure, "pareto.png")
        plt.close(figure)
        run.log_artifacts(tmp_path, "files")
    data = stored(tracker, run.id).data
    assert stored(tracker, run.id).info.status == "FINISHED"
    assert data.metrics == {"quality": 0.75, "ok": 1.0}
    assert [(m.step, m.value) for m in tracker.client.get_metric_history(run.id, "quality")] == [(3, 0.5), (4, 0.75)]
    assert data.params["extra.nested"] == "1"
    assert data.params["long"] == "x" * (PARAM_LENGTH - 3) + "..."
    assert data.params["train.learning_rate"] == "0.0005"
    assert data.params["decode.method"] == "diversed"
    assert data.tags["stage"] == "test"
    assert (data.tags["method"], data.tags["task"], data.tags["seed"]) == ("diversed", "arithmetic", "7")
    assert {path.path for path in tracker.client.list_artifacts(run.id)} == {"table.json", "pareto.png", "files"}
    table = tracker.client.load_table(tracker.experiment_id, "table.json", run_ids=[run.id])
    assert list(table["method"]) == ["strict", "diversed"]
    assert table["cap"][0] == float("inf")


def test_every_setting_is_a_param(tracker: Tracker) -> None:
    from diversed.settings import flatten

    with tracker.run("all") as run:
        pass
    assert set(stored(tracker, run.id).data.params) == set(flatten(tracker.settings.record()))


@pytest.mark.parametrize(
    ("raised", "status"),
    [(ValueError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(3), "KILLED")],
)
def test_exception_ends_the_run_and_passes(tracker: Tracker, raised: BaseException, status: str) -> None:
    with pytest.raises(type(raised)), tracker.run("bad") as run:
        raise raised
    assert stored(tracker, run.id).info.status == status


def test_failing_store_does_not_hide_the_exception(tracker: Tracker, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        with tracker.run("bad") as run:
            run.id = "no-such-run"
            raise ValueError("the real one")

    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="the real one"):
        work()
    assert "could not be marked FAILED" in caplog.text


def test_children_are_nested(tracker: Tracker) -> None:
    with tracker.run("parent") as parent, tracker.run("child", parent_run_id=parent.id) as child:
        pass
    assert stored(tracker, child.id).data.tags["mlflow.parentRunId"] == parent.id


def test_key_finds_the_run_of_a_dead_attempt(tracker: Tracker, settings: Settings, repository: Path) -> None:
    """kill -9 inside the run, then the same work again: one run, and not RUNNING."""
    program = """
import os, signal, sys
from diversed.settings import Settings
from diversed.tracking import Tracker
with Tracker(Settings(output=sys.argv[1], seed=7, tracking={"experiment": sys.argv[2]})).run("work", key="k/1") as run:
    run.log_metrics({"loss": 2.0}, step=1)
    run.log_table([{"a": 1}], "t.json")
    print(run.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'platform'}"}
    command = [sys.executable, "-c", program, str(settings.output), settings.experiment]
    killed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert killed.returncode == -9, killed.stderr
    run_id = killed.stdout.strip()
    assert stored(tracker, run_id).info.status == "RUNNING"
    with tracker.run("work", key="k/1") as run:
        assert run.id == run_id
        run.log_metrics({"loss": 1.0}, step=2)
        run.log_table([{"a": 2}], "t.json")
    assert running(tracker) == []
    assert len(search_all(tracker.client, tracker.experiment_id, "")) == 1
    assert [m.value for m in tracker.client.get_metric_history(run_id, "loss")] == [2.0, 1.0]
    assert tracker.client.load_table(tracker.experiment_id, "t.json", run_ids=[run_id])["a"].tolist() == [2]


def test_keys_do_not_mix(tracker: Tracker) -> None:
    keys = ["k/1", "k/10", "k/%", "it's", 'say "it"']
    ids = []
    for key in keys:
        with tracker.run("a", key=key) as run:
            ids.append(run.id)
    assert len(set(ids)) == len(keys)
    for key, run_id in zip(keys, ids, strict=True):
        with tracker.run("a", key=key) as run:
            assert run.id == run_id
    with pytest.raises(TrackingError, match="both kinds of quotes"), tracker.run("a", key="\"'"):
        pass


def test_resume_with_a_changed_setting_keeps_the_first_and_says_so(tracker: Tracker, settings: Settings) -> None:
    with tracker.run("work", key="k") as run:
        pass
    with Tracker(settings.updated({"serve.port": 8123})).run("work", key="k") as again:
        assert again.id == run.id
    data = stored(tracker, run.id).data
    assert data.params["serve.port"] == "8000"
    assert data.tags["diversed.changed.serve.port"] == "8123"


def test_close_stale_ends_only_what_it_was_asked_for(tracker: Tracker) -> None:
    create = tracker.client.create_run
    mine = create(tracker.experiment_id, tags={"diversed.run_key": "p_1/train"}).info.run_id
    child = create(tracker.experiment_id, tags={"mlflow.parentRunId": mine}).info.run_id
    other = create(tracker.experiment_id, tags={"diversed.run_key": "p-1/train"}).info.run_id
    assert tracker.close_stale(key_prefix="p_1/") == 1
    assert tracker.close_stale(parent_run_id=mine) == 1
    assert [stored(tracker, run).info.status for run in (mine, child, other)] == ["KILLED", "KILLED", "RUNNING"]
    assert tracker.close_stale(key_prefix="p") == 1
    assert running(tracker) == []


def test_values_the_store_refuses_are_tracking_errors(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.run("bad values") as run:
        with pytest.raises(TrackingError, match=r"tracking\.uri"):
            run.log_metrics({"no*stars": 1.0})
        with pytest.raises(TrackingError, match="does not exist"):
            run.log_artifacts(tmp_path / "missing")
