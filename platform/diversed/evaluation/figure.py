"""The Pareto figure: quality against acceptance, and against measured speed-up, with error bars both ways.

Colours are Okabe and Ito's, which colour-blind readers tell apart; markers differ too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.evaluation.intervals import Estimate
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

__all__ = ["pareto_figure", "save_figure"]

Pick = Callable[[MethodRow], Estimate | None]
STYLES: dict[str, dict[str, Any]] = {
    Method.AUTOREGRESSIVE: {"color": "#000000", "marker": "*", "markersize": 15},
    Method.STRICT: {"color": "#0072B2", "marker": "s", "markersize": 9},
    Method.STATIC: {"color": "#E69F00", "marker": "o", "markersize": 7},
    Method.DIVERSED: {"color": "#D55E00", "marker": "D", "markersize": 10},
}
NAMES = {Method.DIVERSED: "DIVERSED", Method.STATIC: "static ensemble, by w"}
GREY = "#555555"
INCHES = (9.6, 4.2)  # with these letters it reads well at README's 830 pixels
DPI = 150


def pareto_figure(comparison: Comparison) -> Figure:
    """One panel per way to count speed that was measured."""
    panels: list[tuple[str, Pick]] = [("acceptance of judged tokens, %", _acceptance)]
    if any(row.summary is not None and "speedup_measured" in row.speed for row in comparison.methods):
        panels.append(("measured speed-up over autoregressive", lambda row: row.speed.get("speedup_measured")))
    figure = Figure(figsize=INCHES if len(panels) == 2 else (INCHES[0] / 1.7, INCHES[1]), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, pick) in zip(axes, panels, strict=True):
        _panel(ax, comparison, pick)
        ax.set_xlabel(title, fontsize=12)
        ax.tick_params(labelsize=11)
        ax.grid(color="#dddddd", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
    axes[0].set_ylabel(f"{comparison.metric}, %", fontsize=12)
    handles, labels = axes[-1].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(
        known.values(), known.keys(), loc="outside upper center", ncols=len(known), fontsize=11, frameon=False
    )
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """`stem`.png and `stem`.svg; each is replaced whole."""
    for suffix in (".png", ".svg"):
        temporary = stem.with_name(f".{stem.name}.tmp{suffix}")
        figure.savefig(temporary, dpi=DPI, metadata={"Date": None} if suffix == ".svg" else None)
        temporary.replace(stem.with_suffix(suffix))


def _panel(ax: Axes, comparison: Comparison, pick: Pick) -> None:
    statics = [row for row in comparison.statics() if pick(row) is not None]
    strict = comparison.row(Method.STRICT.value)
    line = [*statics, *([strict] if strict is not None and pick(strict) is not None else [])]  # strict is w = 1
    if statics:
        ax.plot(*_points(line, pick), color=STYLES[Method.STATIC]["color"], linewidth=1.5, zorder=1)
        _markers(ax, statics, pick, Method.STATIC)
        for static in statics:
            ax.annotate(
                f"{static.weight:g}", _point(static, pick), (6, 6), textcoords="offset points", fontsize=9, color=GREY
            )
    for method in (Method.AUTOREGRESSIVE, Method.STRICT, Method.DIVERSED):
        row = comparison.row(method.value)
        if row is None or row.summary is None:
            continue
        if pick(row) is not None:
            _markers(ax, [row], pick, method)
        elif method is Method.AUTOREGRESSIVE:  # it drafts nothing, so it has a quality but no acceptance
            quality = row.summary.metrics["quality"].scaled(100)
            ax.axhspan(quality.low, quality.high, color="#000000", alpha=0.08, zorder=0)
            ax.axhline(quality.value, color="#000000", linewidth=1, linestyle=":", zorder=0)
            across = ax.get_yaxis_transform()
            ax.text(
                0.5, quality.value, method.value, transform=across, ha="center", va="bottom", fontsize=9, color=GREY
            )


def _markers(ax: Axes, rows: Sequence[MethodRow], pick: Pick, method: Method) -> None:
    xs, ys = _points(rows, pick)
    bars = [_bars([_x(row, pick) for row in rows]), _bars([_y(row) for row in rows])]
    ax.errorbar(
        xs, ys, xerr=bars[0], yerr=bars[1], label=NAMES.get(method, method.value), linestyle="none", capsize=3,
        elinewidth=1.3, markeredgecolor="white", markeredgewidth=0.8, zorder=3, **STYLES[method],
    )  # fmt: skip


def _acceptance(row: MethodRow) -> Estimate | None:
    estimate = row.summary.metrics.get("token_acceptance") if row.summary is not None else None
    return estimate.scaled(100) if estimate is not None else None


def _x(row: MethodRow, pick: Pick) -> Estimate:
    estimate = pick(row)
    if estimate is None:
        raise ValueError(f"{row.label} has no such number")
    return estimate


def _y(row: MethodRow) -> Estimate:
    if row.summary is None:
        raise ValueError(f"{row.label} has no quality")
    return row.summary.metrics["quality"].scaled(100)


def _point(row: MethodRow, pick: Pick) -> tuple[float, float]:
    return _x(row, pick).value, _y(row).value


def _points(rows: Sequence[MethodRow], pick: Pick) -> tuple[list[float], list[float]]:
    points = [_point(row, pick) for row in rows]
    return [x for x, _ in points], [y for _, y in points]


def _bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Lengths below and above, as matplotlib wants them: never negative."""
    return [
        [max(estimate.value - estimate.low, 0.0) for estimate in estimates],
        [max(estimate.high - estimate.value, 0.0) for estimate in estimates],
    ]
