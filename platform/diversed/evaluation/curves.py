"""Rules as curves of quality over acceptance, where DIVERSED lies to them, and what so many prompts can show at all."""

from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from diversed.evaluation.intervals import Estimate, Z
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

__all__ = [
    "ORDER",
    "Family",
    "Outcome",
    "Verdict",
    "acceptance",
    "curve",
    "detectable",
    "diverseds",
    "families",
    "metric",
    "verdicts",
]

# Order of tables and legends: the exact rules, the ensembles, surrogates of the target, thresholds, DIVERSED.
ORDER = [
    Method.AUTOREGRESSIVE, Method.TRUNCATED, Method.STRICT, Method.STATIC, Method.DRAFT_ONLY, Method.LOSSY, Method.CHOW,
    Method.DIFF, Method.OPT, Method.TOKEN_V1, Method.TOKEN_V2, Method.TOKEN_V3, Method.CACTUS, Method.FUZZY,
    Method.MENTORED, Method.TYPICAL, Method.TRT_LLM, Method.CUSTOM, Method.DIVERSED,
]  # fmt: skip
# Of several parameters that vary, the first of these is the one that a curve runs over.
RUNNING = ("weight", "alpha", "delta", "threshold", "divergence", "epsilon")
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Family:
    """A rule, with all that is fixed of it; its rows differ in one parameter, and are in the order of it."""

    label: str
    method: Method
    rows: list[MethodRow]


class Outcome(StrEnum):
    ABOVE = "above, beyond the intervals"
    LEVEL = "not separated"
    BELOW = "below"
    NEVER = "the rule never accepts as much"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where DIVERSED lies to one rule's curve."""

    rule: str
    outcome: Outcome
    most: Estimate  # token acceptance of the rule's most accepting point
    quality: Estimate | None  # of the rule where it accepts as much as DIVERSED; None where it never does


def metric(row: MethodRow, name: str) -> Estimate | None:
    """A pooled number of a method, if it has one."""
    return row.summary.metrics.get(name) if row.summary is not None else None


def acceptance(row: MethodRow) -> float:
    """Token acceptance as a sort key: -1 for what drafts nothing."""
    estimate = metric(row, "token_acceptance")
    return -1.0 if estimate is None else estimate.value


def diverseds(comparison: Comparison) -> list[MethodRow]:
    """The rows of DIVERSED: the first is the one that is spoken of, the others are its seeds or caps."""
    rows = [row for row in comparison.methods if row.method == Method.DIVERSED and row.summary is not None]
    return sorted(rows, key=lambda row: (row.label != Method.DIVERSED, row.label))


def families(comparison: Comparison) -> list[Family]:
    """Every method that has a quality, by rule and fixed parameters."""
    found: list[Family] = []
    for method in ORDER:
        rows = [row for row in comparison.methods if row.method == method and row.summary is not None]
        running = _running(rows)  # of all forms of the method
        ordered = (
            diverseds(comparison)
            if method is Method.DIVERSED
            else sorted(rows, key=lambda row: _at_value(row, running))
        )
        groups: dict[str, list[MethodRow]] = {}
        for row in ordered:
            groups.setdefault(_label(method, row, running), []).append(row)
        # Rules as they come first, their repaired and otherwise changed forms after them.
        labels = sorted(groups, key=lambda label: ("repaired" in label, label))
        for label in labels:
            lone = len(groups[label]) == 1 and method is not Method.DIVERSED
            found.append(Family(groups[label][0].label if lone else label, method, groups[label]))
    return found


def _running(rows: list[MethodRow]) -> str | None:
    """The parameter in which rows of one method differ."""
    numeric = {
        name for row in rows for name, value in row.parameters.items() if isinstance(value, (int, float))
    }  # the others, e.g. a fallback, make rules of their own
    varies = [name for name in numeric if len({row.parameters.get(name) for row in rows}) > 1]
    known = [name for name in RUNNING if name in varies]
    return next(iter(known + sorted(varies)), None)


def _at_value(row: MethodRow, running: str | None) -> tuple[float, str]:
    """A weight falls from strict on, every other parameter rises; one that was not set comes first."""
    value = row.parameters.get(running or "")
    number = float(value) if isinstance(value, (int, float)) else float("-inf")
    return (-number if running == "weight" else number), row.label


def _label(method: Method, row: MethodRow, running: str | None) -> str:
    fixed = [
        f"{name}={value:g}" if isinstance(value, (int, float)) else f"{name}={value}"
        for name, value in row.parameters.items()
        if name not in ("repaired", running)
    ]
    return " ".join([method.value, *fixed, *(["repaired"] if "repaired" in row.parameters else [])])


def curve(family: Family, comparison: Comparison) -> list[MethodRow]:
    """The rows that a rule's curve goes through: of a relaxed rule strict too, its limit."""
    strict = comparison.row(Method.STRICT.value)
    relaxed = family.method.drafts and family.method not in (Method.STRICT, Method.DRAFT_ONLY)
    return [*([strict] if strict is not None and relaxed else []), *family.rows]


def verdicts(comparison: Comparison, label: str = Method.DIVERSED.value) -> list[Verdict]:
    """DIVERSED's quality (the row of that label) against each rule's at the same token acceptance.

    Between a rule's measured points its quality and its bounds are interpolated. Bounds against bounds is the careful
    side: a paired difference would be narrower.
    """
    ours = comparison.row(label)
    at = metric(ours, "token_acceptance") if ours is not None else None
    quality = metric(ours, "quality") if ours is not None else None
    if at is None or quality is None:
        return []
    found = []
    for family in families(comparison):
        points = [
            (x, y)
            for row in curve(family, comparison)
            if (x := metric(row, "token_acceptance")) is not None and (y := metric(row, "quality")) is not None
        ]
        if family.method is Method.DIVERSED or not any(acceptance(row) >= 0 for row in family.rows):
            continue
        points.sort(key=lambda point: (point[0].value, point[1].value))
        theirs = _at(points, at)
        found.append(Verdict(family.label, _outcome(quality, theirs), points[-1][0], theirs))
    return found


def _outcome(ours: Estimate, theirs: Estimate | None) -> Outcome:
    if theirs is None:
        return Outcome.NEVER
    if ours.low > theirs.high:
        return Outcome.ABOVE
    return Outcome.BELOW if ours.high < theirs.low else Outcome.LEVEL


def _at(points: list[tuple[Estimate, Estimate]], at: Estimate) -> Estimate | None:
    """The quality of a curve at that acceptance; None past its end.

    An end that accepts as much up to the intervals, and a start that already accepts more, stand for the curve there.
    """
    before = [point for point in points if point[0].value <= at.value]
    after = [point for point in points if point[0].value > at.value]
    if not after:
        end, quality = before[-1]
        return quality if end.value == at.value or end.high >= at.low else None
    if not before:
        return after[0][1]
    (left_x, left), (right_x, right) = before[-1], after[0]
    share = (at.value - left_x.value) / (right_x.value - left_x.value)
    value, low, high = (
        (1 - share) * getattr(left, name) + share * getattr(right, name) for name in ("value", "low", "high")
    )
    return Estimate(value, low, high, min(left.n, right.n))


def detectable(comparison: Comparison) -> list[float]:
    """For each method, the difference in quality from strict that as many prompts show with 80% power, ascending.

    A 95% interval reaches Z standard errors to each side; the power asks for 0.84 of them more.
    """
    factor = (Z + NormalDist().inv_cdf(POWER)) / Z
    differences = [row.against_strict["quality"] for row in comparison.methods if "quality" in row.against_strict]
    return sorted((difference.high - difference.low) / 2 * factor for difference in differences)
