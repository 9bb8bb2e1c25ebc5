"""Evaluations on Ray workers, and such that are killed: the same bytes as in one uninterrupted process."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from diversed.cluster import engine_for
from diversed.errors import ClusterError, DiversedError
from diversed.evaluation.compare import Part, Runner, compare, run_here
from diversed.evaluation.grid import grid
from diversed.evaluation.workers import Workers, workers_for
from diversed.models import load_pair
from diversed.settings import Settings, load_settings
from diversed.tasks import Split, get_task
from diversed.verifier import Head, VerifierCard, save_verifier

METHODS = "strict,lossy:alpha=0.3/0.5,token-v3:alpha=0.3,cactus,typical:repaired=yes,truncated,diversed"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        ["--output", str(tmp_path), "--task.test-size", "16", "--decode.batch-size", "4", "--evaluate.methods", METHODS]
    )


@pytest.fixture
def work(settings: Settings) -> Callable[..., Any]:
    """`compare` with any runner, into a folder."""
    pair, task = load_pair(settings.pair), get_task(settings.task.name)
    head = Head(pair.draft_dim, pair.target_dim, 0.3)
    variants = grid(settings.updated({"verifier.checkpoint": "given"}), lambda _: head)
    examples = task.examples(settings.task, Split.TEST, settings.seed)

    def run(folder: Path, runner: Runner | None = None) -> dict[str, str]:
        here = run_here(pair, task, settings, partial(engine_for, settings.pair, pair))
        compare(pair, settings, variants, examples, runner or here, folder, Console(file=StringIO()))
        return {str(path.relative_to(folder)): lines_of(path) for path in folder.glob("*/*.jsonl")}

    return run


def lines_of(path: Path) -> str:
    """Without the header, which has the date."""
    return path.read_text().partition("\n")[2]


@pytest.mark.usefixtures("ray_session")
def test_workers_give_the_same_bytes_also_if_one_dies(
    settings: Settings, work: Callable[..., Any], tmp_path: Path
) -> None:
    alone = work(tmp_path / "alone")
    assert len(alone) == 8
    assert workers_for(settings.updated({"evaluate.workers": 1})) == 1
    with Workers(settings, 2) as workers:
        killed: list[int] = []

        def killing(parts: Sequence[Part], /) -> Iterator[Part]:
            for part in workers(parts):
                if not killed:
                    killed.append(_kill_a_worker())
                yield part

        assert work(tmp_path / "together", killing) == alone
        assert killed


def _kill_a_worker() -> int:
    """Of this process's own Ray."""
    for process in psutil.Process().children(recursive=True):
        if "_Worker" in " ".join(process.cmdline()[:1]) or "ray::_Worker" in process.name():
            process.kill()
            return process.pid
    pytest.fail("no worker is running")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_part_that_kills_every_worker_is_given_up(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:  # stands for a variant; local, so that workers get it by value
        label = "broken"

        @property
        def decode(self) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("diversed.evaluation.workers.ATTEMPTS", 2)
    part = Part(Broken(), (), tmp_path / "x.jsonl")  # type: ignore[arg-type]
    with Workers(settings, 1) as workers, pytest.raises(DiversedError, match=r"2 workers died at x\.jsonl of broken"):
        list(workers([part]))


@pytest.mark.usefixtures("ray_session")
def test_a_worker_without_a_place_holds_up_nobody(
    settings: Settings, work: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A served endpoint has all CPUs but one: one worker does it all. With all taken, that is said."""
    import ray

    taken = []
    try:
        for name in ("one", "none"):
            taken.append(ray.util.placement_group([{"CPU": 1}]))
            assert taken[-1].wait(60)
            if name == "one":
                with Workers(settings, 2) as workers:
                    assert len(work(tmp_path / name, workers)) == 8
                monkeypatch.setattr("diversed.evaluation.workers.PLACE_SECONDS", 2.0)
        with Workers(settings, 2) as workers, pytest.raises(ClusterError, match="for 2 s no more than"):
            work(tmp_path / "none", workers)
    finally:
        for group in taken:
            ray.util.remove_placement_group(group)


@pytest.fixture
def start(repository: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """The job on a small grid, its output folder `tmp_path/NAME`."""
    settings = load_settings(["--pair.device", "cpu"])
    pair = load_pair(settings.pair)
    save_verifier(tmp_path / "head", Head(pair.draft_dim, pair.target_dim, 0.3), VerifierCard.of(settings, pair))

    def run(name: str, workers: int) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(repository / "platform"), str(repository)])
        arguments = [
            "--output", str(tmp_path / name), "--pair.device", "cpu", "--verifier-checkpoint", str(tmp_path / "head"),
            "--task.test-size", "20", "--decode.batch-size", "4", "--evaluate.methods", METHODS,
            "--evaluate.temperatures", "0,1", "--evaluate.draft-lengths", "3", "--evaluate.samples", "2",
            "--evaluate.workers", str(workers), "--evaluate.speed-prompts", "2", "--evaluate.speed-repeats", "1",
            "--evaluate.resamples", "100",
        ]  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "jobs.evaluate", *arguments], env=os.environ | {"PYTHONPATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_evaluations_end_with_the_same_aggregates(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, workers: int
) -> None:
    """kill -9 at 5 random moments while it decodes; resumed, its numbers are those of an uninterrupted run, to the
    byte."""
    rng, kills = random.Random(workers), 5
    whole = start("whole", 1)
    said, _ = whole.communicate(timeout=600)
    assert whole.returncode == 0, said
    (wanted,) = tmp_path.glob("whole/evaluations/*/*/numbers.csv")
    total = len(list(tmp_path.glob("whole/evaluations/*/*/results/*/*.jsonl")))
    for attempt in range(kills):
        job = start("killed", workers)
        limit = rng.randrange(1, 8) + attempt * total // kills
        try:
            while job.poll() is None and _files(tmp_path / "killed") < limit:
                time.sleep(0.02)
            time.sleep(rng.random() * 0.5)
        finally:
            _kill_with_children(job)
    last = start("killed", workers)
    said, _ = last.communicate(timeout=600)
    assert last.returncode == 0, said
    assert ", recorded " in said or "are there from before" in said
    (found,) = tmp_path.glob("killed/evaluations/*/*/numbers.csv")
    assert found.read_bytes() == wanted.read_bytes()
    assert len(wanted.read_text().splitlines()) > 200


def _files(output: Path) -> int:
    """Result files, finished ones and parts."""
    return len(list(output.glob("evaluations/*/*/results/*/*.jsonl"))) + len(
        list(output.glob("evaluations/*/*/results/*/*/*.jsonl"))
    )


def _kill_with_children(job: subprocess.Popen[str]) -> None:
    """Nothing of it may go on: not its Ray either."""
    children = psutil.Process(job.pid).children(recursive=True) if job.poll() is None else []
    for process in [job, *children]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    job.communicate(timeout=30)
    psutil.wait_procs(children, timeout=30)
