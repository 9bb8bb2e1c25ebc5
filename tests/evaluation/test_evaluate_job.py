"""The job on the embedded arithmetic pair, small: files, MLflow run, resumption, refusals."""

import re
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest

from diversed.evaluation.report import read_comparisons
from diversed.models import load_pair
from diversed.settings import PairSettings, load_settings
from diversed.verifier import Head, VerifierCard, save_verifier
from jobs.evaluate import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def verifier(tmp_path: Path) -> Path:
    """An untrained head (w = .3 everywhere) as a checkpoint."""
    pair = load_pair(PairSettings())
    folder = tmp_path / "verifier"
    save_verifier(folder, Head(pair.draft_dim, pair.target_dim, 0.3), VerifierCard.of(load_settings([]), pair))
    return folder


@pytest.fixture
def arguments(tmp_path: Path, verifier: Path) -> list[str]:
    sizes = {
        "--task.test-size": "40",
        "--evaluate.methods": "autoregressive,strict,static:weight=0.9/0.3,diversed",
        "--evaluate.workers": "1",
        "--evaluate.speed-prompts": "2",
        "--evaluate.speed-repeats": "1",
        "--evaluate.resamples": "100",
    }
    words = [word for pair in sizes.items() for word in pair]
    return ["--output", str(tmp_path / "out"), "--verifier-checkpoint", str(verifier), *words]


def test_evaluate(arguments: list[str], tmp_path: Path, capsys: Capture, run_ids: Callable[[Path], list[str]]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    (folder,) = (tmp_path / "out" / "evaluations" / "arithmetic-arithmetic").iterdir()
    assert f"results: {folder}" in shown
    assert re.search(r"T1-N7 strict: 40 samples, [\d.]+ s so far", shown)
    comparison = read_comparisons(folder)[0]
    labels = [row.label for row in comparison.methods]
    assert [label for label in labels if not re.match(r"static w=0\.(2\d*|3\d+)$", label)] == [
        "autoregressive", "strict", "static w=0.9", "static w=0.3", "diversed", "HF generate", "HF assisted (strict)",
    ]  # fmt: skip
    assert comparison.origin["trained_on"] == "arithmetic"
    diversed, static = comparison.row("diversed"), comparison.row("static w=0.3")
    assert diversed is not None
    assert static is not None
    assert diversed.summary is not None
    assert static.summary is not None
    # An untrained head of .3 is the static ensemble of .3, and the random numbers are common: the same tokens.
    assert diversed.summary.metrics["token_acceptance"] == static.summary.metrics["token_acceptance"]
    assert diversed.summary.metrics["quality"] == static.summary.metrics["quality"]
    assert diversed.summary.metrics["mean_weight"].value == pytest.approx(0.3)
    assert {"speedup_measured", "speedup_over_hf", "speedup_over_strict", "speedup_predicted"} <= diversed.speed.keys()

    (run_id,) = run_ids(tmp_path / "out")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["diversed/token_acceptance"] == pytest.approx(
        diversed.summary.metrics["token_acceptance"].value
    )
    assert "static w 0.9/quality_against_strict" in run.data.metrics
    logged = {Path(file.path).name for file in client.list_artifacts(run_id, "evaluation")}
    assert {
        "comparisons.json",
        "numbers.csv",
        "results.md",
        "pareto.png",
        "pareto.svg",
        "speed.json",
        "results",
        "run.yaml",
    } <= logged

    before = (folder / "numbers.csv").read_bytes()
    assert main(arguments) == 0
    again = capsys.readouterr().out
    assert "strict: 40 samples, recorded" in again
    assert "speed: 2 prompts, recorded" in again
    assert (folder / "numbers.csv").read_bytes() == before
    assert run_ids(tmp_path / "out") == [run_id]
    assert comparison.origin["run_id"] == run_id
    page = (folder / "report.html").read_text()
    assert run_id in page


@pytest.fixture
def run_ids() -> Callable[[Path], list[str]]:
    def found(output: Path) -> list[str]:
        client = mlflow.MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return [run.info.run_id for run in client.search_runs(experiments)]

    return found


def test_too_few_prompts(arguments: list[str], capsys: Capture) -> None:
    assert main([*arguments, "--task.test-size", "1"]) == 2
    assert "error: task.test_size = 1: an interval needs at least 2 prompts" in capsys.readouterr().err


def test_missing_verifier(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main([*arguments, "--verifier-checkpoint", str(tmp_path / "nowhere")]) == 2
    assert "nowhere': no such folder" in capsys.readouterr().err
