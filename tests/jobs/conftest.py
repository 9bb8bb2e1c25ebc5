"""Jobs as processes of their own, on a Ray of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# One thread and small batches: the embedded pair needs no more, and the tests share two cores.
TINY = [
    "--pair.device", "cpu", "--task.train-size", "8", "--task.validation-size", "12", "--task.test-size", "12",
    "--train.prompts-per-update", "8", "--train.rollouts", "2", "--train.epochs", "1", "--train.passes", "1",
    "--evaluate.margin", "0.95", "--evaluate.resamples", "200",
    "--evaluate.methods", "autoregressive,strict,static:weight=0.5,diversed",
    "--evaluate.speed-prompts", "2", "--evaluate.speed-repeats", "1", "--serve.port", "0",
]  # fmt: skip


@pytest.fixture
def tiny() -> list[str]:
    return TINY


@pytest.fixture
def start(repository: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """`start("pipeline", "--seed", "1")`: the job with a tiny budget, its output folder `tmp_path/out`."""

    def run(job: str, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(repository / "platform"), str(repository)])
        command = [sys.executable, "-m", f"jobs.{job}", *TINY, "--output", str(tmp_path / "out"), *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    return run


@pytest.fixture
def mlflow_runs(tmp_path: Path):
    """All MLflow runs of the jobs of a test."""

    def runs():
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
        return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])

    return runs


@pytest.fixture
def read_until() -> Callable[[subprocess.Popen[str], str], list[str]]:
    """`read_until(process, "trial-2/3")`: lines of its stdout up to the first that begins so."""

    def run(process: subprocess.Popen[str], beginning: str) -> list[str]:
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return lines
        pytest.fail(f"ended before {beginning!r}: {lines}")

    return run
