"""What all suites of the benchmark share: interleaved repetitions, ratios with their spread, records and tables.

Absolute times hold for one machine in one hour. What is compared is measured in turns, in an order that rotates, and
each repetition gives one ratio; the median of these counts and their spread is shown. Warm-up runs are in no number.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from diversed.artifacts import provenance, shown_command, write_json_atomic
from diversed.errors import DataError
from diversed.evaluation.peers import NOTHING, Tally
from diversed.evaluation.progress import Bar
from diversed.models import Pair
from diversed.settings import Settings, Suite

__all__ = [
    "WARMUPS",
    "Report",
    "Row",
    "Sample",
    "Spread",
    "Turn",
    "benchmark_page",
    "interleave",
    "rates",
    "ratio",
    "seconds_of",
    "write_report",
]

WARMUPS = 2  # turns of each contestant before those that count

NOTE = "absolute numbers (seconds, per second) are worth nothing on another machine; compare ratios"


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed turn: seconds, and what was done in them. `whole` are, of a floor, the seconds of the generation above
    it."""

    seconds: float
    tally: Tally = NOTHING
    whole: float = 0.0

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.seconds + other.seconds, self.tally + other.tally, self.whole + other.whole)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the repetitions, and how far they lie apart."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Quartiles by linear interpolation between the sorted values, of which there are at least two."""
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, min(values), lower, upper, max(values))

    def __str__(self) -> str:
        ranges = (self.lower_quartile, self.upper_quartile), (self.minimum, self.maximum)
        return "\n".join([_short(self.median), *(f"{_short(low)}–{_short(high)}" for low, high in ranges)])


Row = dict[str, str | int | float | Spread | None]  # column name -> value; each row begins with "name"
Turn = Callable[[int, int], Sample]  # (repetition, item) -> what it took


def interleave(
    turns: Mapping[str, Turn], items: int, repetitions: int, console: Console, label: str, warmups: int = WARMUPS
) -> dict[str, list[Sample]]:
    """Each contestant's sum over `items`, per repetition. All take their turn at an item before the next one comes, in
    an order that begins one further each time. `warmups` turns of each come before and are not summed."""
    names = list(turns)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    with Bar(console, label, len(names) * (warmups + repetitions * items), "turns") as bar:
        done = 0
        for name in names:
            for i in range(warmups):
                turns[name](0, i % items)
                bar.update(done := done + 1)
        for repetition in range(repetitions):
            sums = {name: Sample(0.0) for name in names}
            for item in range(items):
                first = (repetition + item) % len(names)
                for name in names[first:] + names[:first]:
                    sums[name] += turns[name](repetition, item)
                    bar.update(done := done + 1)
            for name in names:
                samples[name].append(sums[name])
    return samples


def ratio(tops: Sequence[float], bottoms: Sequence[float]) -> Spread:
    """Of the ratios of the repetitions, top over bottom."""
    return Spread.of([top / bottom for top, bottom in zip(tops, bottoms, strict=True)])


def rates(samples: Sequence[Sample], unit: str = "tokens") -> list[float]:
    """`tokens` or `rounds` per second of each repetition."""
    return [float(getattr(sample.tally, unit)) / sample.seconds for sample in samples]


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of `call`, the device's queue included."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@dataclass(slots=True)
class Report:
    """A suite's result. `columns` says what each column of the tables means; `samples` are the repetitions; `remarks`
    are shown, `about` is only recorded."""

    columns: dict[str, str]
    tables: dict[str, list[Row]]
    samples: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """The tables, the meaning of their columns, the remarks, and what absolute numbers are worth."""
        for title, rows in self.tables.items():
            table = Table(title=title, title_justify="left", show_lines=True)
            names = list(dict.fromkeys(name for row in rows for name in row))
            for name in names:
                table.add_column(name.replace("_", " "), justify="left" if name == "name" else "right")
            for row in rows:
                table.add_row(*(_shown(row.get(name)) for name in names))
            console.print(table)
        for name, meaning in self.columns.items():
            console.print(f"- {name.replace('_', ' ')}: {meaning}", highlight=False)
        console.print("- below a median: quartiles, then minimum and maximum, of the repetitions", highlight=False)
        for remark in [*self.remarks, NOTE]:
            console.print(f"- {remark}", highlight=False)

    def metrics(self) -> dict[str, float]:
        """Each number of the tables as `<name>/<column>`; of a spread, the median."""
        values = {}
        for rows in self.tables.values():
            for row in rows:
                for column, value in row.items():
                    number = value.median if isinstance(value, Spread) else value
                    if isinstance(number, int | float):
                        values[f"{row['name']}/{column}"] = float(number)
        return values

    def rows(self) -> list[dict[str, Any]]:
        """All tables as one, of plain values: a spread takes five columns."""
        flat = []
        for title, rows in self.tables.items():
            for row in rows:
                cells: dict[str, Any] = {"table": title}
                for column, value in row.items():
                    if isinstance(value, Spread):
                        cells |= {f"{column} {statistic}": number for statistic, number in asdict(value).items()}
                    else:
                        cells[column] = value
                flat.append(cells)
        return flat


def write_report(folder: Path, suite: Suite, report: Report, settings: Settings, pair: Pair) -> Path:
    """Record a suite as `<folder>/<suite>-<date>.json`; the file."""
    now = datetime.now(UTC)
    decode = settings.decode
    record = {
        "suite": suite.value,
        "date": now.isoformat(timespec="seconds"),
        "remarks": [*report.remarks, NOTE],
        "pair": dict(pair.identity),
        "task": settings.task.name,
        "device": torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": settings.pair.dtype.value,
        "compiled": settings.pair.compiled,
        "draft_words": settings.pair.draft_words,
        "draft_length": decode.draft_length,
        "temperature": decode.temperature,
        "top_k": decode.top_k,
        "top_p": decode.top_p,
        "max_new_tokens": settings.task.max_new_tokens,
        "seed": settings.seed,
        "verifier": settings.verifier.checkpoint,
        "repetitions": settings.benchmark.repetitions,
        "provenance": provenance(),
        **report.about,
        "columns": report.columns,
        "tables": {
            title: [
                {name: asdict(value) if isinstance(value, Spread) else value for name, value in row.items()}
                for row in rows
            ]
            for title, rows in report.tables.items()
        },
        "samples": report.samples,
    }
    path = folder / f"{suite.value}-{now:%Y-%m-%dT%H%M%SZ}.json"
    write_json_atomic(path, record)
    return path


def benchmark_page(paths: Sequence[Path]) -> str:
    """Markdown of recorded suites, a section each. DataError if a file is none."""
    lines = ["# Benchmarks", "", f"Medians of interleaved repetitions, quartiles below them; {NOTE}."]
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            lines += _section(record)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; give a record of jobs.benchmark") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not a benchmark's record: {error!r}; give one of jobs.benchmark") from error
    return "\n".join(lines) + "\n"


def _section(record: Mapping[str, Any]) -> list[str]:
    origin = record["provenance"]
    commit = str(origin["git_commit"] or "unknown")[:12] + (" with local changes" if origin["git_dirty"] else "")
    threads = f"{record['threads']} thread{'' if record['threads'] == 1 else 's'}"
    models = ", models through torch.compile" if record["compiled"] else ""
    models += f", draft head of {record['draft_words']} words" if record["draft_words"] else ""
    run = [
        record["date"][:10],
        f"commit `{commit}`",
        f"{origin['device']} {record['dtype']}",
        f"draft length {record['draft_length']}",
        f"temperature {record['temperature']:g}",
        f"at most {record['max_new_tokens']} tokens",
        f"{record['repetitions']} repetitions",
    ]
    lines = [
        "",
        f"## {record['suite']}: {record['pair']['name']}, {record['task']}, {threads}{models}",
        "",
        ", ".join(run) + ":",
        "",
        f"`{shown_command(origin['command'])}`",
    ]
    for title, rows in record["tables"].items():
        names = list(dict.fromkeys(name for row in rows for name in row if name != "name"))
        lines += ["", f"**{title}**", "", "| | " + " | ".join(name.replace("_", " ") for name in names) + " |"]
        lines.append("|---|" + "--:|" * len(names))
        for row in rows:
            lines.append(f"| {row['name']} | " + " | ".join(_written(row.get(name)) for name in names) + " |")
    meanings = [f"- {name.replace('_', ' ')}: {meaning}" for name, meaning in record["columns"].items()]
    return [*lines, "", *meanings, *(f"- {remark}" for remark in record["remarks"] if remark != NOTE)]


def _written(value: Any) -> str:
    """A cell of a recorded table."""
    if not isinstance(value, Mapping):
        return _shown(value)
    return (
        f"{_short(value['median'])}<br><sub>{_short(value['lower_quartile'])}–{_short(value['upper_quartile'])}</sub>"
    )


def _short(number: float) -> str:
    """Three significant digits, no exponent."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:#.3g}"


def _shown(value: str | float | Spread | None) -> str:
    if value is None:
        return "–"
    return _short(value) if isinstance(value, float) else str(value)
