"""The one boundary between a job and its user: settings in, an exit code out, errors as one line."""

import functools
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from diversed.errors import DiversedError
from diversed.settings import Settings, load_settings

__all__ = ["Stopped", "job", "run_job"]

# Libraries whose INFO lines (and, for some, warnings) are about their own insides.
CHATTY = (
    "alembic",
    "asyncio",
    "datasets",
    "filelock",
    "fsspec",
    "httpcore",
    "httpx",
    "matplotlib",
    "mlflow",
    "optuna",
    "urllib3",
)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived: clean up and leave. A KeyboardInterrupt, so that no `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Command(Protocol):
    """A job's `main`."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def job(description: str) -> Callable[[Callable[[Settings], object]], Command]:
    """Makes `stage(settings)` a command: `main(argv) -> exit code`; the stage itself stays at `main.__wrapped__`.

    A module reads `main = job("What it does.")(stage)` and ends with `if __name__ == "__main__": sys.exit(main())`.
    """

    def decorate(stage: Callable[[Settings], object]) -> Command:
        @functools.wraps(stage)
        def main(argv: Sequence[str] | None = None) -> int:
            return run_job(stage, argv, description)

        return main

    return decorate


def run_job(stage: Callable[[Settings], object], argv: Sequence[str] | None = None, description: str = "") -> int:
    """Run `stage` with the settings of `argv` (default: the command line); the exit code.

    0; 2 for input the caller can mend, 1 for other errors raised on purpose, both with one line `error: ...`;
    130 or 143 after SIGINT or SIGTERM. Any other exception is a bug and keeps its traceback.
    """
    quiet_libraries()
    try:
        with _signals_raise():
            stage(load_settings(argv, program=f"python -m {_module(stage)}", description=description))
    except DiversedError as error:
        # Ray re-raises a worker's error as a subclass whose text is the remote traceback; `cause` is the error itself.
        print(f"error: {getattr(error, 'cause', None) or error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        return 128 + number
    return 0


def _module(stage: Callable[[Settings], object]) -> str:
    """Import name of the job's module, which calls itself `__main__` under `python -m`."""
    module = sys.modules[stage.__module__]
    return module.__spec__.name if module.__spec__ else module.__name__


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGINT and SIGTERM raise `Stopped` once; later ones are ignored, so that cleaning up is not itself interrupted.

    (`timeout` and `make` send the same signal to a process and to its group, so one stop often arrives twice.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quiet_libraries() -> None:
    """Keep third-party chatter off the screen; the platform's own lines (`diversed`, `jobs`) are shown from INFO."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or the tokenizer warns after each fork
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for name in ("diversed", "jobs"):
        logging.getLogger(name).setLevel(logging.INFO)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category)
