"""Attempts at a job of several stages: a folder, a lock, and a record of the stages that are done.

    <root>/lock              held by the running process; the system releases it when the process dies
    <root>/1, <root>/2, ...  attempts: state.json says what is done, each stage has a folder of its own

The latest unfinished attempt is taken up again; after a finished one, or with `resume` off, a new one begins.
"""

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diversed.artifacts import write_json_atomic
from diversed.errors import ConfigError
from diversed.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Attempt", "attempt_at", "duration", "fingerprint", "run_stages", "screen"]

STATE = "state.json"
LOG_WIDTH = 150  # columns; rich takes 80 where there is no terminal, too few for a table of trials or methods
NO_EFFECT = ("output", "resume", "serve")  # settings that change no result of a stage
Stage = Callable[[Path], dict[str, Any]]


class Attempt:
    """One attempt's folder and what is done in it. Results of stages are plain JSON objects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / STATE
        self._state: dict[str, Any] = (
            json.loads(path.read_text()) if path.is_file() else {"finished": False, "stages": {}}
        )
        self.resumed = path.is_file()
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def finished(self) -> bool:
        return bool(self._state["finished"])

    def result(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage returned; None if it is still to be done."""
        record = self._state["stages"].get(stage)
        return None if record is None else record["result"]

    @property
    def seconds(self) -> float:
        """Of all stages that are done."""
        return sum(float(record["seconds"]) for record in self._state["stages"].values())

    def done(self, stage: str, result: dict[str, Any], seconds: float) -> None:
        self._state["stages"][stage] = {"seconds": round(seconds, 1), "result": result}
        self._write()

    def finish(self) -> None:
        self._state["finished"] = True
        self._write()

    def _write(self) -> None:
        write_json_atomic(self.folder / STATE, self._state)


def fingerprint(settings: Settings) -> str:
    """8 hexadecimal digits of all settings that have an effect on results."""
    record = {name: value for name, value in settings.record().items() if name not in NO_EFFECT}
    record["evaluate"].pop("workers")
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=4).hexdigest()


@contextmanager
def attempt_at(root: Path, resume: bool) -> Iterator[Attempt]:
    """The attempt to work on, while nobody else works below `root`. ConfigError if somebody does."""
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root):
        numbers = sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal())
        latest = Attempt(root / str(numbers[-1])) if numbers else None
        if latest is None or latest.finished or not resume:
            latest = Attempt(root / str(numbers[-1] + 1 if numbers else 1))
        yield latest


def run_stages(attempt: Attempt, stages: dict[str, Stage], lasting: int) -> None:
    """Run the stages that are not done, one screen line at their beginning and end.

    The first `lasting` stages leave their results on disk; the others (an endpoint) are run again at each resumption.
    """
    for number, (name, stage) in enumerate(stages.items(), start=1):
        label = f"[{number}/{len(stages)}] {name}"
        if number <= lasting and attempt.result(name) is not None:
            print(f"{label}: done before, see {attempt.folder / name}", flush=True)
            continue
        print(f"{label} ...", flush=True)
        folder = attempt.folder / name
        folder.mkdir(exist_ok=True)
        start = time.monotonic()
        result = stage(folder)
        seconds = time.monotonic() - start
        attempt.done(name, result, seconds)
        print(f"{label}: {duration(seconds)}", flush=True)


def screen() -> "Console":
    """Where a job shows its lines and tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=LOG_WIDTH)


def duration(seconds: float) -> str:
    """`41 s` or `3 min 05 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextmanager
def _lock(root: Path) -> Iterator[None]:
    path = root / "lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(
                f"{root} is in use by {file.read().strip() or 'another process'}; "
                "wait for it, stop it, or give another --output"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
