"""The benchmark job: a small run on the embedded pair, refusals, and what an interrupt leaves."""

import json
from pathlib import Path

import mlflow
import pytest

from diversed.evaluation import processes, suites
from diversed.evaluation.benchmark import Report
from diversed.evaluation.processes import Footprint
from jobs.benchmark import main

Capture = pytest.CaptureFixture[str]

SMALL = [
    "--draft-length", "2", "--task.max-new-tokens", "8", "--pair.device", "cpu", "--train.prompts-per-update", "2",
    "--train.rollouts", "2", "--benchmark.repetitions", "3", "--benchmark.prompts", "1", "--benchmark.batch-sizes", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def runs(output: Path) -> list[mlflow.entities.Run]:
    client = mlflow.MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    return client.search_runs([each.experiment_id for each in client.search_experiments()])


def test_records_tables_and_run(output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    footprint = Footprint(8, 256, imports=4, loaded=5, peak=9, weights=2, caches=3)  # a process of its own: see there
    monkeypatch.setattr(processes, "measure_memory", lambda _: footprint)
    assert main(["--output", str(output), *SMALL, "--benchmark.suites", "engine,batch,learner,numerics"]) == 0
    shown = capsys.readouterr().out
    files = sorted((output / "benchmarks" / "arithmetic").iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["batch", "engine", "learner", "numerics"]
    assert all(f"record: {file}" in shown for file in files)
    for file in files:
        record = json.loads(file.read_text())
        assert {
            "suite",
            "date",
            "remarks",
            "warmup",
            "threads",
            "dtype",
            "provenance",
            "tables",
            "samples",
        } <= record.keys()
        assert record["tables"]
    assert "memory" in json.loads(files[0].read_text())["tables"]
    (run,) = runs(output)
    assert (run.info.status, run.data.tags["stage"]) == ("FINISHED", "benchmark")
    assert run.data.params["benchmark.repetitions"] == "3"
    assert {"engine/strict/over_hf_generate", "engine/static w 0.5/floor_over_measured"} <= run.data.metrics.keys()
    assert {"batch/one row accepts nothing/slowdown", "learner/update/learner_share"} <= run.data.metrics.keys()
    client = mlflow.MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"engine.json", "benchmark"}
    assert {Path(file.path).name for file in client.list_artifacts(run.info.run_id, "benchmark")} == {
        file.name for file in files
    }


def test_an_interrupt_leaves_whole_records(output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(suites, "measure_engine", lambda *_: Report({}, {"t": [{"name": "a", "n": 1}]}))
    monkeypatch.setattr(suites, "measure_batch", interrupted)
    argv = ["--output", str(output), *SMALL, "--pair.cache-dir", str(output / "cache")]
    folder = output / "benchmarks" / "arithmetic"
    before = set(folder.iterdir()) if folder.is_dir() else set()
    assert main(argv) == 130
    assert capsys.readouterr().err.splitlines() == ["stopped by SIGINT"]
    (new,) = set(folder.iterdir()) - before
    assert json.loads(new.read_text())["tables"] == {"t": [{"name": "a", "n": 1}]}
    assert runs(output)[0].info.status == "KILLED"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--benchmark.suites", "engines"], "error: benchmark.suites"),
        (["--benchmark.repetitions", "2"], "error: benchmark.repetitions = '2'"),
        (["--benchmark.batch-sizes", "0"], "error: benchmark.batch_sizes"),
        (["--pair", "nope"], "error: pair.name = 'nope'"),
        (["--pair.placement", "actors"], "error: pair.placement = 'actors'"),
        (["--decode.weight", "0"], "error: decode.weight = 0"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["--output", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
