"""The comparison in words and tables: for a terminal, for README, for a spreadsheet."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from diversed.artifacts import shown_command
from diversed.evaluation.intervals import Estimate
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

__all__ = ["console_table", "headlines", "markdown", "table_rows"]

SAME_ACCEPTANCE = 0.02  # a static ensemble this near to DIVERSED's acceptance "accepts as much"


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    pick: Callable[[MethodRow], Estimate | None]
    scale: float
    form: str


def _columns(metric: str) -> list[_Column]:
    def pooled(name: str) -> Callable[[MethodRow], Estimate | None]:
        return lambda row: row.summary.metrics.get(name) if row.summary is not None else None

    return [
        _Column(f"{metric}, %", pooled("quality"), 100, ".1f"),
        _Column("minus strict", lambda row: row.against_strict.get("quality"), 100, "+.1f"),
        _Column("token acceptance, %", pooled("token_acceptance"), 100, ".1f"),
        _Column("acceptance rate, %", pooled("acceptance_rate"), 100, ".1f"),
        _Column("drafted per round", pooled("drafted_per_round"), 1, ".2f"),
        _Column("block efficiency", pooled("block_efficiency"), 1, ".2f"),
        _Column("tokens/s", lambda row: row.speed.get("tokens_per_second"), 1, ".1f"),
        _Column("speed-up, measured", lambda row: row.speed.get("speedup_measured"), 1, ".2f"),
        _Column("predicted", lambda row: row.speed.get("speedup_predicted"), 1, ".2f"),
    ]


def table_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Every number of every method, one row per method and number: for an MLflow table or a spreadsheet."""
    rows = []
    for method in comparison.methods:
        groups = {
            "": method.summary.metrics if method.summary is not None else {},
            "_against_strict": method.against_strict,
            "_against_autoregressive": method.against_autoregressive,
            "_speed": method.speed,
        }
        for suffix, numbers in groups.items():
            for name, estimate in numbers.items():
                metric = name if suffix in ("", "_speed") else name + suffix
                rows.append({"method": method.label, "metric": metric, **asdict(estimate)})
    return rows


def console_table(comparison: Comparison) -> Table:
    """The comparison for a terminal: each number above its 95% interval."""
    columns = _columns(comparison.metric)
    table = Table(title=_title(comparison), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True, min_width=20)
    for column in columns:
        table.add_column(column.title, justify="right", max_width=13 if column.form.startswith("+") else 11)
    for row in comparison.methods:
        cells = []
        for column in columns:
            value, interval = _cell(column, row)
            cells.append(f"{value}\n[dim]{interval}[/dim]" if interval else value)
        name = row.label if row.gate is None or row.gate.passed else f"{row.label}\n[dim]quality not shown equal[/dim]"
        table.add_row(name, *cells, style="bold" if row.method == Method.DIVERSED else None)
    return table


def markdown(comparison: Comparison, figure: str) -> str:
    """The comparison for README: what was run, table, headlines, figure, where the numbers come from."""
    columns = _columns(comparison.metric)
    origin = comparison.origin
    lines = [
        f"**{_title(comparison)}**",
        "",
        "| method | " + " | ".join(column.title for column in columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for row in comparison.methods:
        cells = []
        for column in columns:
            value, interval = _cell(column, row)
            cells.append(f"{value}<br><sub>{interval}</sub>" if interval else value)
        name = f"**{row.label}**" if row.method == Method.DIVERSED else row.label
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        *(f"- {line}" for line in headlines(comparison)),
        "",
        f"![Quality against acceptance and speed]({figure})",
    ]
    commits = ", ".join(f"`{commit[:12]}`" for commit in origin["git_commits"]) or "unknown"
    dirty = " with local changes" if origin["git_dirty"] else ""
    intervals = f"{origin['resamples']} bootstrap resamples; Wilson and Newcombe where {comparison.metric} is yes or no"
    lines += [
        "",
        f"<sub>95% intervals below the numbers; their unit is the prompt ({intervals}).</sub>",
        f"<sub>{_timing(origin)}</sub>",
        f"<sub>{origin['date'][:10]}, commit {commits}{dirty}, {origin['machine']}:</sub>",
        f"<sub>`{shown_command(origin['command'])}`</sub>",
    ]
    return "\n".join(line for line in lines if line != "<sub></sub>") + "\n"


def headlines(comparison: Comparison) -> list[str]:
    """The comparison in sentences: the claims that the table supports, or fails to."""
    lines = []
    diversed, metric = comparison.row(Method.DIVERSED.value), comparison.metric
    if diversed is not None and diversed.summary is not None:
        acceptance = diversed.summary.metrics.get("token_acceptance")
        quality = diversed.against_strict.get("quality")
        if acceptance is not None and quality is not None:
            lines.append(
                f"DIVERSED accepts {acceptance.told(100, '.1f')}% of the judged tokens; its {metric} minus strict's"
                f" is {quality.told(100, '+.1f')} points (paired, n = {quality.n})."
            )
        if diversed.gate is not None and not diversed.gate.passed:
            lines.append(f"Not shown to be as good as strict: {'; '.join(diversed.gate.reasons)}.")
        lines += _matched_line(comparison, diversed)
        lines += _speed_lines(diversed)
    if _predicts_loss(comparison):
        lines.append("The cost model predicts no gain from speculation with this pair on this machine (below 1).")
    return lines


def _matched_line(comparison: Comparison, diversed: MethodRow) -> list[str]:
    """The static ensemble that accepts nearest to DIVERSED, if one accepts about as much."""
    wanted = _acceptance(diversed)
    near = [
        row for row in comparison.statics() if abs(_acceptance(row) - wanted) < SAME_ACCEPTANCE and row.against_strict
    ]
    if not near:
        return []
    row = min(near, key=lambda row: abs(_acceptance(row) - wanted))
    loss = row.against_strict["quality"]
    which = f"w = {row.weight:g}: {_acceptance(row):.1%}"
    change = f"{loss.told(100, '+.1f')} points of {comparison.metric}"
    return [f"The static ensemble that accepts as much ({which}) changes strict's quality by {change}."]


def _acceptance(row: MethodRow) -> float:
    estimate = row.summary.metrics.get("token_acceptance") if row.summary is not None else None
    return estimate.value if estimate is not None else float("nan")


def _speed_lines(row: MethodRow) -> list[str]:
    baselines = {
        "speedup_measured": "this platform's own autoregressive loop",
        "speedup_over_hf": "Hugging Face `generate`",
        "speedup_over_strict": "strict",
    }
    parts = [f"{row.speed[name].told(1, '.2f')}x {words}" for name, words in baselines.items() if name in row.speed]
    if not parts:
        return []
    lines = [f"Measured speed, one prompt at a time: {', '.join(parts)}."]
    if "speedup_length_adjusted" in row.speed:
        ratio, adjusted = row.speed["length_ratio"], row.speed["speedup_length_adjusted"]
        line = f"Its outputs are {ratio.value:.2f} times as long; length-adjusted, {adjusted.told(1, '.2f')}x remain."
        if "measured_over_predicted" in row.speed:
            line += f" Measured over predicted: {row.speed['measured_over_predicted'].told(1, '.2f')}."
        lines.append(line)
    return lines


def _predicts_loss(comparison: Comparison) -> bool:
    predictions = [
        row.speed["speedup_predicted"].value for row in comparison.methods if "speedup_predicted" in row.speed
    ]
    return bool(predictions) and max(predictions) < 1


def _title(comparison: Comparison) -> str:
    origin = comparison.origin
    n = max(row.summary.prompts for row in comparison.methods if row.summary is not None)
    return (
        f"{comparison.label}: n = {n} test prompts, temperature {origin['temperature']:g}, draft length"
        f" {origin['draft_length']}, at most {origin['max_new_tokens']} tokens"
    )


def _timing(origin: Mapping[str, Any]) -> str:
    timing = origin["speed"]
    if timing is None:
        return ""
    return (
        f"Speed: wall clock, batch 1, {timing['prompts']} prompts x {timing['repeats']} interleaved repetitions,"
        f" {timing['warmup']['generations_left_out_per_method']} warm-up generations per method left out;"
        " speed-ups are over the autoregressive loop."
    )


def _cell(column: _Column, row: MethodRow) -> tuple[str, str]:
    estimate = column.pick(row)
    return ("–", "") if estimate is None else estimate.cell(column.scale, column.form)
