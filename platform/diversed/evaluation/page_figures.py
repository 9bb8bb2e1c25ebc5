"""The figures of the page, as SVG that stands inside HTML: text stays text, and colours follow the page's theme.

Colours are Okabe and Ito's. Rules also differ in marker and line, and what a rule has in several forms in the marker's
filling. The key is HTML, made of `swatches`, so that it covers no point and breaks into lines where the page is narrow.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from diversed.evaluation.curves import Family, acceptance, curve, diverseds, families, metric
from diversed.evaluation.intervals import Estimate
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

__all__ = ["Picture", "cell_pictures", "length_pictures", "swatches"]

Pick = Callable[[MethodRow], Estimate | None]
Style = dict[str, Any]

# Stand-ins that no figure uses otherwise: `_svg` puts the page's own colours in their place.
INK, MUTED, GRID, PAPER, BLUE = "#010101", "#747475", "#d9d9da", "#fefefe", "#0072b2"
THEME = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", BLUE: "blue"}
ORANGE, SKY, GREEN, VERMILLION, PURPLE = "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7"

STYLES: dict[Method, tuple[str, str, str]] = {  # colour, marker, line
    Method.AUTOREGRESSIVE: (INK, "*", ":"),
    Method.TRUNCATED: (MUTED, "*", ":"),
    Method.STRICT: (BLUE, "s", "-"),
    Method.STATIC: (ORANGE, "o", "-"),
    Method.DRAFT_ONLY: (INK, "X", "-"),
    Method.LOSSY: (GREEN, "^", "-"),
    Method.CHOW: (SKY, "v", ":"),
    Method.DIFF: (SKY, "<", "--"),
    Method.OPT: (SKY, ">", "-"),
    Method.TOKEN_V1: (PURPLE, "h", ":"),
    Method.TOKEN_V2: (PURPLE, "p", "--"),
    Method.TOKEN_V3: (PURPLE, "P", "-"),
    Method.CACTUS: (GREEN, "p", "--"),
    Method.FUZZY: (GREEN, "8", ":"),
    Method.MENTORED: (GREEN, "d", "-."),
    Method.CUSTOM: (MUTED, "h", "-."),
    Method.TYPICAL: (MUTED, "X", "-"),
    Method.TRT_LLM: (MUTED, "P", "--"),
    Method.DIVERSED: (VERMILLION, "D", "none"),
}
FILLINGS = ("full", "none", "left", "right", "top", "bottom")
HATCHES = {Method.STRICT: "", Method.STATIC: "///", Method.DIVERSED: ""}
INCHES = (4.9, 3.9)  # on a phone, 360 pixels wide, its letters are 10 pixels high
LETTERS = 10.0
APART = 0.055  # of the panel's width and height: static weights nearer to one another than this are not all written
RC: dict[Any, Any] = {
    "text.parse_math": False,  # a label may hold dollars
    "svg.fonttype": "none",
    "font.size": LETTERS,
    "text.color": INK,
    "axes.labelcolor": INK,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One panel with what stands below it."""

    caption: str
    svg: str


def cell_pictures(comparison: Comparison, salt: str) -> list[Picture]:
    """All figures of one cell whose numbers were measured; `salt` keeps their ids apart from other cells'."""
    measured = [row for row in comparison.methods if row.summary is not None and "speedup_measured" in row.speed]
    found = []
    with rc_context(RC):
        found.append(_pareto(comparison, _acceptance, "token acceptance, %", f"{salt}a"))
        if measured:
            found.append(_pareto(comparison, _speed("speedup_measured"), "measured speed-up", f"{salt}b"))
        kind = "speedup_measured" if measured else "speedup_predicted"
        if any(kind in row.speed for row in comparison.methods if row.summary is not None):
            found.append(_time(comparison, kind, f"{salt}c"))
        if comparison.statics():
            found.append(_by_weight(comparison, f"{salt}d"))
        found.append(_histogram(comparison, f"{salt}e"))
    return found


def length_pictures(comparisons: Sequence[Comparison], salt: str) -> list[Picture]:
    """DIVERSED and strict against the draft length, from cells that differ only in it."""
    numbers: list[tuple[str, str, Pick]] = [
        ("acceptance", "accepted / drafted, %", _percent("acceptance_rate")),
        ("block efficiency", "emitted tokens per target forward", lambda row: metric(row, "block_efficiency")),
        ("speed-up", "measured speed-up", _speed("speedup_measured")),
        ("quality", f"{comparisons[0].metric}, %", _percent("quality")),
    ]
    lengths = sorted({int(comparison.origin["draft_length"]) for comparison in comparisons})
    found = []
    with rc_context(RC):
        for number, (name, title, pick) in enumerate(numbers):
            figure, ax = _panel("draft length N", title)
            for method, line, aside in ((Method.STRICT, "--", -0.04), (Method.DIVERSED, "-", 0.04)):
                points = _by_length(comparisons, method, pick, aside)
                colour, marker, _ = STYLES[method]
                ax.plot(*_values(points), color=colour, linewidth=1.6, linestyle=line)
                _marks(ax, points, {"color": colour, "marker": marker, "markersize": 7}, prominent=True)
                if points:
                    _name(ax, *points[-1], method)
            ax.set_xticks(lengths)
            caption = f"By draft length: {name}"
            if ax.containers:
                found.append(Picture(caption, _svg(figure, f"{salt}{number}", caption)))
    return found


def swatches(comparison: Comparison, salt: str) -> list[tuple[str, str]]:
    """Name and line-with-marker of each rule that the figures of a cell show."""
    found = []
    with rc_context(RC):
        for number, (family, style) in enumerate(_styled(comparison)):
            figure = Figure(figsize=(0.5, 0.2))
            line = Line2D([0.05, 0.5, 0.95], [0.5] * 3, markevery=[1], **style)
            line.set_transform(figure.transFigure)
            figure.add_artist(line)
            name = "DIVERSED" if family.label == Method.DIVERSED else family.label
            found.append((name, _svg(figure, f"{salt}key{number}", name)))
    return found


# -- panels --------------------------------------------------------------------------------------------------------


def _pareto(comparison: Comparison, pick: Pick, title: str, salt: str) -> Picture:
    figure, ax = _panel(title, f"{comparison.metric}, %")
    _curves(ax, comparison, pick, _percent("quality"))
    _weights(ax, comparison, pick, _percent("quality"))
    caption = f"Quality against {title.removesuffix(', %')}"
    return Picture(caption, _svg(figure, salt, caption))


def _time(comparison: Comparison, kind: str, salt: str) -> Picture:
    how = kind.removeprefix("speedup_")
    figure, ax = _panel("token acceptance, %", f"time per token over autoregressive's ({how})")
    _curves(ax, comparison, _acceptance, lambda row: _inverse(row.speed.get(kind)))
    ax.axhline(1, color=INK, linewidth=1, linestyle=":", zorder=0)
    caption = f"Normalised time against acceptance: 1 / {how} speed-up, lower is faster"
    return Picture(caption, _svg(figure, salt, caption))


def _curves(ax: Axes, comparison: Comparison, x: Pick, y: Pick) -> None:
    """Every rule's curve over its parameter; the ensemble's front thick, DIVERSED on top."""
    for family, style in _styled(comparison):
        points = _points(family.rows, x, y)
        if not points:
            _level(ax, family, y)
            continue
        is_diversed = family.method is Method.DIVERSED
        marks = {name: value for name, value in style.items() if name not in ("linestyle", "linewidth")}
        if not is_diversed:
            line = _points(sorted(curve(family, comparison), key=acceptance), x, y)
            ax.plot(
                *_values(line), color=style["color"], linewidth=style["linewidth"], linestyle=style["linestyle"],
                zorder=1,
            )  # fmt: skip
            _marks(ax, points, marks)
        else:
            _marks(ax, points[:1], marks, prominent=True)
            _marks(ax, points[1:], marks | {"markersize": 5.5}, prominent=True)
        if family.label in (Method.STRICT, Method.DIVERSED):
            _name(ax, *points[0], family.method)


def _level(ax: Axes, family: Family, y: Pick) -> None:
    """What drafts nothing has a quality but no acceptance: a line across."""
    estimate = y(family.rows[0])
    if estimate is None or family.method.drafts:
        return
    colour = STYLES[family.method][0]
    ax.axhspan(estimate.low, estimate.high, color=colour, alpha=0.07, linewidth=0, zorder=0)
    ax.axhline(estimate.value, color=colour, linewidth=1, linestyle=":", zorder=0)


def _name(ax: Axes, x: Estimate, y: Estimate, method: Method) -> None:
    is_diversed = method is Method.DIVERSED
    ax.annotate(
        "DIVERSED" if is_diversed else method.value, (x.value, y.value), (0, 8), textcoords="offset points",
        ha="center", va="bottom", fontweight="bold" if is_diversed else "normal", color=STYLES[method][0], zorder=6,
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 1},
    )  # fmt: skip


def _weights(ax: Axes, comparison: Comparison, x: Pick, y: Pick) -> None:
    """The ensemble's w beside its points, as many as there is room for."""
    written: list[tuple[float, float]] = []
    for row in _plain_statics(comparison):
        for a, b in _points([row], x, y):
            place = ax.transAxes.inverted().transform(ax.transData.transform((a.value, b.value)))
            if all(max(abs(place[0] - left), abs(place[1] - up)) > APART for left, up in written):
                written.append((place[0], place[1]))
                ax.annotate(
                    f"{row.weight:g}", (a.value, b.value), (-4, -4), textcoords="offset points", ha="right", va="top",
                    fontsize=LETTERS - 1.5, color=MUTED,
                )  # fmt: skip


def _by_weight(comparison: Comparison, salt: str) -> Picture:
    figure, ax = _panel("weight w on the target", "token acceptance, %")
    _curves(ax, comparison, _weight, _acceptance)
    caption = "Acceptance against the weight: static ensembles"
    for row in diverseds(comparison)[:1]:
        mean = _weight(row)
        if mean is not None:
            ax.axvline(mean.value, color=VERMILLION, linewidth=1, linestyle=":", zorder=0)
            caption += f", and DIVERSED at its mean w = {mean.value:.2f}"
    ax.set_xlim(-0.03, 1.03)
    return Picture(caption, _svg(figure, salt, caption))


def _histogram(comparison: Comparison, salt: str) -> Picture:
    figure, ax = _panel("drafted tokens accepted in a round", "share of rounds, %")
    ax.grid(visible=False, axis="x")
    chosen = [comparison.row(Method.STRICT.value), _nearest_static(comparison), *diverseds(comparison)[:1]]
    shown = [row for row in chosen if row is not None and row.summary is not None]
    for number, row in enumerate(shown):
        counts = row.summary.accepted_histogram if row.summary is not None else []
        total = sum(counts) or 1
        places = [accepted + 0.27 * (number - (len(shown) - 1) / 2) for accepted in range(len(counts))]
        method = Method(row.method or "")
        name = "DIVERSED" if method is Method.DIVERSED else row.label
        ax.bar(
            places, [100 * count / total for count in counts], 0.25, color=STYLES[method][0], hatch=HATCHES[method],
            edgecolor=PAPER, linewidth=0.4, label=name,
        )  # fmt: skip
    ax.set_xticks(range(max((len(row.summary.accepted_histogram) for row in shown if row.summary), default=1)))
    if shown:
        figure.legend(loc="outside upper center", ncols=len(shown), frameon=False, handlelength=1.4)
    caption = "Accepted tokens per round: strict, the static ensemble that accepts nearest to DIVERSED, DIVERSED"
    return Picture(caption, _svg(figure, salt, caption))


# -- numbers -------------------------------------------------------------------------------------------------------


def _plain_statics(comparison: Comparison) -> list[MethodRow]:
    """The paper's static ensembles: those without a cap."""
    return [row for row in comparison.statics() if set(row.parameters) == {"weight"}]


def _nearest_static(comparison: Comparison) -> MethodRow | None:
    ours = diverseds(comparison)[:1]
    statics = [row for row in _plain_statics(comparison) if acceptance(row) >= 0]
    if not ours or not statics:
        return None
    return min(statics, key=lambda row: (abs(acceptance(row) - acceptance(ours[0])), row.label))


def _by_length(
    comparisons: Sequence[Comparison], method: Method, pick: Pick, aside: float
) -> list[tuple[Estimate, Estimate]]:
    """Points over the draft length, a little beside it: two methods' bars must not hide one another."""
    found = []
    for comparison in sorted(comparisons, key=lambda comparison: float(comparison.origin["draft_length"])):
        rows = diverseds(comparison)[:1] if method is Method.DIVERSED else [comparison.row(method.value)]
        known = [row for row in rows if row is not None]
        length = _exact(float(comparison.origin["draft_length"]) + aside)
        found += [(length, number) for row in known if (number := pick(row)) is not None]
    return found


def _percent(name: str) -> Pick:
    def pick(row: MethodRow) -> Estimate | None:
        estimate = metric(row, name)
        return None if estimate is None else estimate.scaled(100)

    return pick


def _speed(name: str) -> Pick:
    return lambda row: row.speed.get(name)


_acceptance = _percent("token_acceptance")


def _weight(row: MethodRow) -> Estimate | None:
    """Of the ensembles: strict is the one with w = 1, DIVERSED has a mean."""
    if row.method == Method.DIVERSED:
        return metric(row, "mean_weight")
    weight = 1.0 if row.method == Method.STRICT else row.weight
    return None if weight is None else _exact(weight)


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value, 0)


def _inverse(estimate: Estimate | None) -> Estimate | None:
    if estimate is None or estimate.low <= 0:
        return None
    return Estimate(1 / estimate.value, 1 / estimate.high, 1 / estimate.low, estimate.n)


def _points(rows: Sequence[MethodRow], x: Pick, y: Pick) -> list[tuple[Estimate, Estimate]]:
    return [(a, b) for row in rows if (a := x(row)) is not None and (b := y(row)) is not None]


def _values(points: Sequence[tuple[Estimate, Estimate]]) -> tuple[list[float], list[float]]:
    return [a.value for a, _ in points], [b.value for _, b in points]


# -- drawing -------------------------------------------------------------------------------------------------------


def _styled(comparison: Comparison) -> list[tuple[Family, Style]]:
    """Each rule with its look; further forms of a rule keep its colour and marker, and fill the marker otherwise."""
    found: list[tuple[Family, Style]] = []
    forms: dict[Method, int] = {}
    for family in families(comparison):
        colour, marker, line = STYLES[family.method]
        form = forms[family.method] = forms.get(family.method, -1) + 1
        size = {Method.DIVERSED: 9.0, Method.STRICT: 7.0, Method.STATIC: 5.5, Method.AUTOREGRESSIVE: 9.0}
        style: Style = {
            "color": colour, "marker": marker, "linestyle": line, "markersize": size.get(family.method, 4.8),
            "linewidth": 2.4 if family.method is Method.STATIC and form == 0 else 1.0,
            "fillstyle": FILLINGS[form % len(FILLINGS)], "markerfacecoloralt": PAPER,
        }  # fmt: skip
        found.append((family, style))
    return found


def _panel(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=INCHES, layout="constrained")
    ax = figure.subplots()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.tick_params(color=MUTED, labelcolor=MUTED, labelsize=LETTERS)
    ax.grid(color=GRID, linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.set_axisbelow(True)
    ax.margins(0.06, 0.09)
    return figure, ax


def _marks(ax: Axes, points: Sequence[tuple[Estimate, Estimate]], style: Style, prominent: bool = False) -> None:
    """Markers with light bars both ways."""
    if not points:
        return
    if style.get("fillstyle", "full") == "full":
        style = style | {"markeredgecolor": PAPER}
    drawn = ax.errorbar(
        *_values(points), xerr=_bars([x for x, _ in points]), yerr=_bars([y for _, y in points]), linestyle="none",
        elinewidth=1.6 if prominent else 0.8, markeredgewidth=0.7, zorder=5 if prominent else 3, **style,
    )  # fmt: skip
    for bar in drawn[2]:
        bar.set_alpha(0.8 if prominent else 0.35)


def _bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Lengths below and above, as matplotlib wants them: never negative."""
    return [
        [max(estimate.value - estimate.low, 0.0) for estimate in estimates],
        [max(estimate.high - estimate.value, 0.0) for estimate in estimates],
    ]


def _svg(figure: Figure, salt: str, words: str) -> str:
    """The figure as an element of an HTML page: nothing in it but shapes and text, the same bytes each time."""
    text = StringIO()
    with rc_context({"svg.hashsalt": salt}):  # ids come from it: two figures of a page must not share one
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for rubbish in (
        r"<metadata>.*?</metadata>",
        r"<style.*?</style>",  # it would hold for the whole page
        r"<!--.*?-->",
        r' id="[A-Za-z0-9.]+_[0-9]+"',  # names of groups, the same in each figure
        r' xmlns(:xlink)?="[^"]*"',  # HTML knows them
        r"\n *(?=<)",
    ):
        svg = re.sub(rubbish, "", svg, flags=re.DOTALL)
    opening = f'<svg role="img" aria-label="{escape(words)}"'
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', lambda _: opening, svg, count=1)
    for stand_in, name in THEME.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    return svg
