"""Progress that fits where it is shown: a bar on a terminal, one line per finished step in a log."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Bar"]


class Bar:
    """`with Bar(console, "strict", 2000, "prompts") as bar: bar.update(done)`."""

    def __init__(self, console: Console, label: str, total: int, unit: str) -> None:
        self.console, self.label, self.total, self.unit = console, label, total, unit
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(f"{label:<16}", total=total)
        self._start = time.perf_counter()

    def update(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def __enter__(self) -> Self:
        self._progress.start()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if error is None:
            seconds = time.perf_counter() - self._start
            self.console.print(f"{self.label}: {self.total} {self.unit} in {seconds:.1f} s", highlight=False)
