"""The benchmark: the order of turns, ratios by hand, the floor's forwards, what is counted of the peers. No time is
asserted."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from diversed.decoding import Generation, Request, build_engine
from diversed.errors import ConfigError, DataError, DiversedError
from diversed.evaluation import processes, suites
from diversed.evaluation.benchmark import Report, Sample, Spread, benchmark_page, interleave, ratio, write_report
from diversed.evaluation.floor import Floor
from diversed.evaluation.peers import HuggingFace, Tally
from diversed.evaluation.processes import STAGES, Footprint, measure_memory, run_process
from diversed.evaluation.speed import HF_ASSISTED, HF_GENERATE
from diversed.evaluation.suites import HF_ENSEMBLE
from diversed.models import load_pair
from diversed.settings import Settings, Suite, load_settings
from diversed.tasks import Split, Task, get_task
from diversed.verifier import Head


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


@pytest.fixture
def small(settings: Settings) -> Settings:
    changes = {"repetitions": 3, "prompts": 2, "batch_sizes": [2], "draft_lengths": [2, 3]}
    return settings.updated(
        {"task.max_new_tokens": 12} | {f"benchmark.{name}": value for name, value in changes.items()}
    )


# -- repetitions and ratios ------------------------------------------------------------------------------------------


def test_contestants_take_turns() -> None:
    """At each item all take a turn, in an order that begins one further each time; warm-up turns are not summed."""
    calls: list[tuple[str, int, int]] = []

    def turn(name: str) -> Callable[[int, int], Sample]:
        def run(repetition: int, item: int) -> Sample:
            calls.append((name, repetition, item))
            return Sample(float(len(calls)), Tally(5, 2))

        return run

    samples = interleave({name: turn(name) for name in "abc"}, 2, 2, quiet(), "test", warmups=3)
    assert calls[:9] == [(name, 0, item) for name in "abc" for item in (0, 1, 0)]
    assert ["".join(name for name, *_ in calls[i : i + 3]) for i in range(9, 21, 3)] == ["abc", "bca", "bca", "cab"]
    assert [call[1:] for call in calls[9::3]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert samples["a"] == [Sample(10.0 + 15.0, Tally(10, 4)), Sample(18.0 + 20.0, Tally(10, 4))]


def test_spread_by_hand() -> None:
    assert ratio([2, 6, 9, 4, 5], [1, 2, 3, 4, 1]) == Spread(3.0, 1.0, 2.0, 3.0, 5.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 1.75, 3.25, 4.0)


def samples(tokens_per_second: float, tokens: int = 60, rounds: int = 60, **counts: int) -> list[Sample]:
    """Three repetitions, the second one on a machine half as fast."""
    seconds = tokens / tokens_per_second
    return [Sample(seconds * slow, Tally(tokens, rounds, **counts)) for slow in (1.0, 2.0, 1.0)]


def floor(forwards: list[Sample], factor: float) -> list[Sample]:
    """Forwards of generations that took `factor` as long, measured in the same turns."""
    return [replace(each, whole=factor * each.seconds) for each in forwards]


def test_engine_numbers_by_hand() -> None:
    """A machine that slows down for all moves no ratio; equal acceptance compares rounds per second."""
    report = suites.engine_report(
        {
            "autoregressive": samples(100),
            "autoregressive, forwards alone": floor(samples(125), 1.25),
            "strict": samples(200, rounds=20, drafted=100, accepted=40, verified=50),
            "strict, forwards alone": floor(samples(290, rounds=20), 1.25),
            "static w=0.5": samples(300, rounds=15),
            "diversed N=3": samples(320, rounds=15),
            "diversed N=7": samples(280, rounds=10),
            HF_GENERATE: samples(80),
            HF_ASSISTED: samples(100, rounds=30, drafted=150, accepted=30, verified=60),
            HF_ENSEMBLE: samples(150, rounds=20),
        },
        {
            "autoregressive": None,
            "strict": 5,
            "static w=0.5": 5,
            "diversed N=3": 3,
            "diversed N=7": 7,
            HF_GENERATE: None,
        }
        | {HF_ASSISTED: 5, HF_ENSEMBLE: 5},
    )
    (rows,) = report.tables.values()
    row = {row["name"]: row for row in rows}

    def median(name: str, column: str) -> float:
        spread = row[name][column]
        assert isinstance(spread, Spread)
        assert spread.minimum == pytest.approx(spread.maximum)
        return spread.median

    assert row["strict"]["tokens_per_second"] == pytest.approx(200)
    assert row["strict"]["token_acceptance"] == pytest.approx(0.8)
    assert row["strict"]["block_efficiency"] == pytest.approx(3.0)
    assert median("strict", "over_hf_generate") == pytest.approx(2.5)
    assert median("strict", "over_hf_assisted") == pytest.approx(2.0)
    assert median("strict", "at_equal_acceptance") == pytest.approx(2.0 * (60 / 30) / (60 / 20))
    assert median("strict", "floor_over_measured") == pytest.approx(0.8)
    assert median("static w=0.5", "over_hf_assisted") == pytest.approx(2.0)  # over the ensemble, not over strict
    assert median(HF_ASSISTED, "over_hf_generate") == pytest.approx(1.25)
    assert row["autoregressive"]["token_acceptance"] is None
    assert "over_hf_assisted" not in row["autoregressive"]
    assert "at_equal_acceptance" not in row["diversed N=7"]  # another number of drafts: not the peer's rounds
    assert report.about["best_draft_length"] == 3
    assert any("best N is 3" in remark for remark in report.remarks)
    assert report.metrics()["strict/over_hf_generate"] == pytest.approx(2.5)


def test_batch_numbers_by_hand() -> None:
    report = suites.batch_report(
        {"strict, batch 1": samples(100, rounds=20), "strict, batch 4": samples(350, rounds=20)},
        ["strict"],
        [1, 4],
        {"rule": samples(100, rounds=60), "nothing": samples(80, rounds=60)},
    )
    assert report.metrics()["strict, batch 4/over_batch_1"] == pytest.approx(3.5)
    assert report.metrics()["one row accepts nothing/slowdown"] == pytest.approx(1.25)
    suites.add_memory(report, Footprint(8, 1024, imports=100, loaded=500, peak=700, weights=300, caches=200))
    assert report.metrics()["8 requests of 1024 tokens/peak_over_computed"] == pytest.approx(1.4)
    assert report.metrics()["8 requests of 1024 tokens/without_imports"] == pytest.approx(1.2)


def test_startup_numbers_by_hand(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage and `--help` are run once for warming up and once per repetition."""
    run: list[str] = []
    monkeypatch.setattr(suites, "run_stage", lambda stage, *_: run.append(stage))
    monkeypatch.setattr(suites, "run_process", lambda command: run.append(*command))
    report = suites.measure_startup(settings.updated({"benchmark.repetitions": 3}), "abc", ["help"], quiet())
    assert sorted(run) == sorted(4 * [*STAGES, "help"])
    assert [row["name"] for row in report.tables["startup"]] == [*STAGES, "--help"]
    by_hand = suites.startup_report({"import torch, transformers": samples(30), "--help": samples(60)})
    assert by_hand.metrics()["--help/seconds"] == pytest.approx(1.0)
    assert by_hand.metrics()["--help/over_libraries"] == pytest.approx(0.5)


# -- the floor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def outputs(pair: Any) -> Any:
    """Logits of every forward of the pair's models, in order."""
    seen: list[torch.Tensor] = []
    hooks = [
        model.register_forward_hook(lambda _module, _inputs, output: seen.append(output.logits.clone()))
        for model in (pair.target, pair.draft)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("method", ["autoregressive", "strict", "diversed"])
def test_the_floor_is_the_same_forwards(
    pair: Any, settings: Settings, outputs: list[torch.Tensor], method: str
) -> None:
    """As many as the engine made, on the same inputs and caches: the same logits, bit by bit. The engine is itself
    afterwards."""
    decode = settings.decode.model_copy(update={"method": method, "batch_size": 1})
    engine = build_engine(pair, decode, Head(32, 32, 0.5) if method == "diversed" else None)
    floor = Floor(engine)
    requests = [Request.of(pair.encode(text, False), 20, seed, decode) for seed, text in enumerate(["abc", "defgh"])]
    expected = engine.generate([requests[1]])[0].tokens
    for request in requests:  # a recording replaces the one before
        outputs.clear()
        with floor.recording():
            (generation,) = engine.generate([request])
        made = outputs.copy()
        outputs.clear()
        floor.replay()
        assert len(outputs) == len(made) == floor.forwards >= generation.rounds
        assert all(torch.equal(one, other) for one, other in zip(outputs, made, strict=True))
    assert generation.tokens == expected
    assert engine.generate([requests[1]])[0].tokens == expected
    assert len(outputs) == 2 * floor.forwards  # the last generation was not recorded


# -- the peers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, 0.5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_the_target_is_always_accepted(
    pair: Any, settings: Settings, weight: float | None, temperature: float
) -> None:
    same = SimpleNamespace(**{**vars(pair), "draft": pair.target, "eos_ids": ()})
    decode = settings.decode.model_copy(update={"temperature": temperature})
    tokens, tally = HuggingFace(same, decode, assisted=True, ensemble_weight=weight).generate([5, 6, 7], 20, 0)
    assert len(tokens) == tally.tokens == 20
    assert (tally.rounds, tally.drafted, tally.accepted, tally.verified) == (5, 15, 15, 15)


@pytest.mark.parametrize("weight", [None, 0.9, 0.5])
def test_greedy_peers_count_as_we_do(pair: Any, settings: Settings, weight: float | None) -> None:
    """Without sampling the rounds are ours, one by one: the same tokens, drafts and acceptances, EOS or not."""
    rule: dict[str, Any] = {"method": "strict"} if weight is None else {"method": "static", "weight": weight}
    decode = settings.decode.model_copy(update={"temperature": 0.0, "cap": math.inf, **rule})
    # transformers hides a pad token that was emitted from the draft; models emit none, but this one is random.
    pair = SimpleNamespace(**{**vars(pair), "pad_id": 1})
    own, peer = build_engine(pair, decode), HuggingFace(pair, decode, assisted=True, ensemble_weight=weight)
    for i in range(8):
        prompt = pair.encode(f"{i} prompt {i}", False)
        (generation,) = own.generate([Request.of(prompt, 24, 0, decode)])
        assert peer.generate(prompt, 24, 0) == (generation.tokens, suites._tally(generation))


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, 0.9, 0.5])
def test_peers_are_oracles_on_the_embedded_pair(weight: float | None) -> None:
    """Greedy, 20 prompts: token for token and round for round what transformers gives. Sampled: its acceptance is ours,
    by the 99% interval of the mean difference per prompt (false alarm 1%; seeds are fixed)."""
    rule: dict[str, Any] = {"method": "strict"} if weight is None else {"method": "static", "weight": weight}
    asked = load_settings([]).updated({"task.test_size": 40})
    pair, prompts = load_pair(asked.pair), get_task("arithmetic").examples(asked.task, Split.TEST, 0)

    def compared(temperature: float, count: int) -> list[tuple[tuple[list[int], Tally], tuple[list[int], Tally]]]:
        decode = asked.decode.model_copy(update={"temperature": temperature, "batch_size": 1, **rule})
        own, peer = build_engine(pair, decode), HuggingFace(pair, decode, assisted=True, ensemble_weight=weight)
        answers = []
        for seed, example in enumerate(prompts[:count]):
            ids = pair.encode(example.prompt, False)
            (generation,) = own.generate([Request.of(ids, 60, seed, decode)])
            answers.append(((generation.tokens, suites._tally(generation)), peer.generate(ids, 60, seed)))
        return answers

    for ours, theirs in compared(0.0, 20):
        assert ours == theirs
    pairs = [[tally.accepted / tally.verified for _, tally in both] for both in compared(1.0, 40)]
    difference = torch.tensor(pairs, dtype=torch.float64).diff(dim=1)
    assert abs(difference.mean()) <= 2.71 * difference.std() / math.sqrt(40)  # Student's t, 39 degrees of freedom


def test_plain_generation_counts_no_drafts(pair: Any, settings: Settings) -> None:
    tokens, tally = HuggingFace(pair, settings.decode, assisted=False).generate([5, 6, 7], 9, 0)
    assert tally == Tally(len(tokens), len(tokens))


# -- suites ----------------------------------------------------------------------------------------------------------


def test_one_row_accepts_nothing(pair: Any, task: Task, small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone: the other rows write what they write beside a neighbour under the rule, in as many timed rounds."""
    prompts = suites._Prompts.of(small, pair, task.examples(small.task, Split.TEST, 0))
    stubborn = suites._Stubborn.of(small, prompts, pair, rows=3)
    seen: list[list[Generation]] = []
    generate = stubborn.engine.generate

    def spy(requests: list[Request]) -> list[Generation]:
        seen.append(generate(requests))
        return list(seen[-1])

    monkeypatch.setattr(stubborn.engine, "generate", spy)
    normal, refused = stubborn.normal(0, 0), stubborn.one_accepts_nothing(0, 0)
    assert refused.tally.accepted == 0 < seen[0][0].accepted
    assert seen[1][0].rounds == small.task.max_new_tokens == len(seen[1][0].tokens)
    assert [each.tokens for each in seen[0][1:]] == [each.tokens for each in seen[1][1:]]
    assert normal.tally.rounds == refused.tally.rounds == 12 // 4 - 2
    assert min(normal.seconds, refused.seconds) > 0


def test_engine_suite_and_its_record(pair: Any, task: Task, small: Settings, tmp_path: Path) -> None:
    examples = task.examples(small.task, Split.TEST, 0)
    report = suites.measure_engine(small, pair, examples, Head(32, 32, 0.5), quiet())
    own = ["autoregressive", "strict", "static w=0.5", "diversed N=2", "diversed N=3"]
    (rows,) = report.tables.values()
    assert [row["name"] for row in rows] == [*own, HF_GENERATE, HF_ASSISTED, HF_ENSEMBLE]
    assert all(("floor_over_measured" in row) == (row["name"] in own) for row in rows)
    assert all(name in report.columns for row in rows for name in row if name != "name")
    for label in own:  # the floor's rounds are those of the method itself
        for one, other in zip(report.samples[label], report.samples[f"{label}, forwards alone"], strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0, "whole": 0}
            assert other["whole"] > 0
    # An untrained head of .5 is the static ensemble of .5: the same seeds give the same tokens.
    assert [each["tokens"] for each in report.samples["static w=0.5"]] == [
        each["tokens"] for each in report.samples["diversed N=3"]
    ]
    path = write_report(tmp_path / "benchmarks", Suite.ENGINE, report, small, pair)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("engine-")
    record = json.loads(path.read_text())
    assert (record["threads"], record["dtype"], record["device"]) == (torch.get_num_threads(), "float32", "cpu")
    assert (record["draft_length"], record["temperature"], record["repetitions"]) == (3, 1.0, 3)
    assert record["warmup"] == 2
    assert "2 warm-up turns of each contestant are left out of all numbers" in record["remarks"]
    assert record["best_draft_length"] in (2, 3)
    assert record["provenance"]["packages"]["transformers"]
    assert "git_commit" in record["provenance"]
    assert record["prompts"] == ["test-0", "test-1"]
    strict = record["tables"]["engine, batch 1"][1]
    assert set(strict["over_hf_generate"]) == {"median", "minimum", "lower_quartile", "upper_quartile", "maximum"}
    page = benchmark_page([path, path])
    assert page.count("## engine: ") == 2
    shown = f"{strict['over_hf_generate']['median']:#.3g}<br><sub>{strict['over_hf_generate']['lower_quartile']:#.3g}–"
    (line, _) = [line for line in page.splitlines() if line.startswith("| strict | 3 |")]
    assert shown in line
    assert f"- tokens per second: {report.columns['tokens_per_second']}" in page


@pytest.mark.parametrize("content", ["[]", "{}", "{", "3"])
def test_a_page_of_what_is_no_record(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"record\.json: not a benchmark's record"):
        benchmark_page([path])
    with pytest.raises(DataError, match="No such file"):
        benchmark_page([tmp_path / "none.json"])


def test_batch_suite(pair: Any, task: Task, small: Settings) -> None:
    report = suites.measure_batch(small, pair, task.examples(small.task, Split.TEST, 0), None, quiet())
    assert [(row["name"], row["rows"]) for row in report.tables["throughput"]] == [
        ("autoregressive, batch 1", 1), ("autoregressive, batch 2", 2), ("strict, batch 1", 1), ("strict, batch 2", 2),
    ]  # fmt: skip
    assert report.about["requests_by_batch_size"] == {"1": 4, "2": 8}
    assert all(each["accepted"] == 0 for each in report.samples["nothing"])
    assert any(each["accepted"] > 0 for each in report.samples["rule"])


def test_a_report_is_shown_and_flattened() -> None:
    report = Report(
        {"speed": "how fast"}, {"t": [{"name": "a", "speed": Spread(2, 1, 1.5, 2.5, 3)}, {"name": "b", "n": 1}]}
    )
    console = quiet()
    report.show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2.00" in shown
    assert shown.index("2.00") < shown.index("1.50–2.50") < shown.index("1.00–3.00")
    assert "- speed: how fast" in shown
    assert report.rows()[0] | {"speed minimum": 1, "table": "t"} == report.rows()[0]
    assert report.metrics() == {"a/speed": 2.0, "b/n": 1.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pair.placement": "actors"}, "give in-process"),
        ({"decode.weight": 1.0}, "takes a weight between 0 and 1"),
        ({"task.max_new_tokens": 8}, "give 9 or more"),
    ],
)
def test_settings_that_compare_nothing_are_refused(settings: Settings, changes: dict[str, Any], said: str) -> None:
    suites.check_benchmark(settings)
    with pytest.raises(ConfigError, match=said):
        suites.check_benchmark(settings.updated(changes))


def test_too_few_prompts_are_refused(pair: Any, task: Task, small: Settings) -> None:
    examples = task.examples(small.task, Split.TEST, 0)[:1]
    with pytest.raises(DataError, match=r"benchmark\.prompts = 2: there are 1 test prompts"):
        suites.measure_engine(small, pair, examples, None, quiet())


# -- fresh processes -------------------------------------------------------------------------------------------------


def test_a_process_that_fails_is_one_line() -> None:
    with pytest.raises(DiversedError, match=r"^-c .*: ended with exit code 1: ValueError: no$"):
        run_process([sys.executable, "-c", "raise ValueError('no')"])


def test_memory_in_a_process_of_its_own() -> None:
    footprint = measure_memory(load_settings(["--task.max-new-tokens", "4"]))
    assert (footprint.requests, footprint.tokens) == (8, 256)  # the pair has no 1,024 positions
    target = 2 * 8 * 4 * 24 * 4  # keys and values, layers, heads, width, bytes
    assert footprint.caches > 8 * 256 * target
    assert 3_000_000 < footprint.weights < 5_000_000
    assert footprint.peak > footprint.imports + footprint.weights


def test_stages_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports are processes that do nothing else; the others are given settings and prompt, and end well (here without
    the process around them)."""
    settings = load_settings(["--task.max-new-tokens", "4"])
    done: list[str] = []

    def here(command: list[str], text: str = "") -> str:
        if command[1] == "-c":
            compile(command[2], "stage", "exec")
        else:
            assert command[:3] == [sys.executable, "-m", processes.__name__]
            monkeypatch.setattr(sys, "stdin", StringIO(text))
            processes.main(command[3])
        done.append(command[-1])
        return ""

    monkeypatch.setattr(processes, "run_process", here)
    for stage in STAGES:
        processes.run_stage(stage, settings, "1 + 1?")
    assert done == ["import torch, transformers", "import diversed.decoding", "load the pair", "first generation"]
