"""What is measured of one generation, and how prompts are pooled into the numbers of a method (method.md 7).

To add a metric, add its entry to `METRICS` or `RATES`, and to `ExampleResult` what it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diversed.decoding import Generation
from diversed.evaluation.intervals import Array, Bootstrap, Estimate, newcombe, wilson
from diversed.verification import AUDIT, OVERSHOOT, Kind

__all__ = [
    "METRICS",
    "PAIRED",
    "RATES",
    "ExampleResult",
    "MethodSummary",
    "Metric",
    "example_result",
    "longest_repeat",
    "matched",
    "paired",
    "paired_quality",
    "summarise",
]

RARE = 1e-3  # a token below this probability is one that the target would hardly say
LOOP_PERIOD = 32  # tokens: the longest phrase whose repetition is looked for
LOOP_COPIES = 3
LOOP_TOKENS = 24


@dataclass(frozen=True, slots=True)
class ExampleResult:
    """One sample of a prompt under one method: counts and sums only, no tensor. A line of JSON.

    "Judged" tokens were accepted or replaced by verification; the others are bonus tokens, whose law is the target's.
    """

    id: str
    sample: int  # its number among the prompt's samples
    label: str
    quality: float  # the task's metric, in [0, 1]
    tokens: int  # emitted, EOS included
    rounds: int  # target forwards after the prompt
    drafted: int
    accepted: int
    verified: int  # judged tokens
    accepted_histogram: list[int]  # rounds that accepted 0, 1, .. N drafted tokens
    finish_reason: str
    tv_sum: float  # of TV(p, q) over judged tokens
    w_sum: float  # of the weight on the target over judged tokens
    p_sum: float  # of the target's probability over all tokens
    rare: int  # tokens with p < RARE
    # Sums over all emitted tokens of what the exact law `out` at each position says (`verification.AUDIT`; at a bonus
    # it is p). None where it is not known: greedy decoding has no such law, and the engine was not asked for an audit.
    output_tv_sum: float | None  # of TV(out, p)
    output_kl_sum: float | None  # of KL(out || p), nats
    overshoot_sum: float | None  # of the mass of out above OVERSHOOT * p
    gap_sum: float | None  # of the gap to the frontier
    smallest_gap: float | None  # below 0 (but for rounding) something is wrong
    empty: bool  # the text is white space
    longest_repeat: int  # tokens, see `longest_repeat`
    distinct_bigrams: int
    text: str

    @property
    def looped(self) -> bool:
        """Some phrase of up to LOOP_PERIOD tokens is repeated LOOP_COPIES times or more, over LOOP_TOKENS or more."""
        return self.longest_repeat >= LOOP_TOKENS

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    def record(self) -> dict[str, Any]:
        """Plain JSON values, read back by `ExampleResult(**record)`."""
        return asdict(self)


def example_result(
    example_id: str,
    sample: int,
    label: str,
    generation: Generation,
    text: str,
    quality: float,
    draft_length: int,
) -> ExampleResult:
    """The record of one generation; `draft_length` is that which it was decoded with."""
    kind_T, p_T, tv_T, w_T = (getattr(generation, f"{name}_T").double().numpy() for name in ("kind", "p", "tv", "w"))
    judged_T = (kind_T == Kind.ACCEPTED) | (kind_T == Kind.REPLACEMENT)
    tokens = np.asarray(generation.tokens)
    histogram = np.bincount(generation.accepted_R.numpy(), minlength=draft_length + 1)
    return ExampleResult(
        id=example_id,
        sample=sample,
        label=label,
        quality=float(quality),
        tokens=len(tokens),
        rounds=generation.rounds,
        drafted=generation.drafted,
        accepted=generation.accepted,
        verified=int(judged_T.sum()),
        accepted_histogram=histogram.tolist(),
        finish_reason=generation.finish_reason,
        tv_sum=float(tv_T[judged_T].sum()),
        w_sum=float(w_T[judged_T].sum()),
        p_sum=float(p_T.sum()),
        rare=int((p_T < RARE).sum()),
        **_audited(generation),
        empty=not text.strip(),
        longest_repeat=longest_repeat(tokens),
        distinct_bigrams=len(set(zip(generation.tokens, generation.tokens[1:], strict=False))),
        text=text,
    )


def _audited(generation: Generation) -> dict[str, float | None]:
    """The sums of an audit; None each where there is none."""
    sums = {
        "output_tv": "output_tv_sum",
        "output_kl": "output_kl_sum",
        "overshoot_mass": "overshoot_sum",
        "frontier_gap": "gap_sum",
    }
    values: dict[str, float | None] = dict.fromkeys([*sums.values(), "smallest_gap"])
    if generation.audit_TA is None or generation.request.temperature == 0:
        return values
    columns = dict(zip(AUDIT, generation.audit_TA.double().unbind(-1), strict=True))
    for name, field in sums.items():
        total = float(columns[name].sum())
        values[field] = total if isfinite(total) else None
    smallest = float(columns["frontier_gap"].min()) if len(generation.tokens) else 0.0
    values["smallest_gap"] = smallest if isfinite(smallest) else None
    return values


def longest_repeat(tokens: NDArray[np.int64]) -> int:
    """Tokens of the longest stretch with a period of at most LOOP_PERIOD, repeated LOOP_COPIES times or more; or 0."""
    longest = 0
    for period in range(1, min(LOOP_PERIOD, len(tokens) // LOOP_COPIES) + 1):
        same = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        matches = int((edges[1::2] - edges[::2]).max(initial=0))
        if matches >= (LOOP_COPIES - 1) * period:
            longest = max(longest, matches + period)
    return longest


@dataclass(frozen=True, slots=True)
class Metric:
    """A number pooled over prompts: the sum of `top` over the sum of `bottom`; undefined where one of them is None."""

    top: Callable[[ExampleResult], float | None]
    bottom: Callable[[ExampleResult], float | None]
    meaning: str


METRICS: Mapping[str, Metric] = {
    "acceptance_rate": Metric(lambda r: r.accepted, lambda r: r.drafted, "accepted / drafted"),
    "drafted_per_round": Metric(lambda r: r.drafted, lambda r: r.rounds, "drafted tokens per target forward"),
    "accepted_per_round": Metric(lambda r: r.accepted, lambda r: r.rounds, "accepted tokens per target forward"),
    "token_acceptance": Metric(
        lambda r: r.accepted, lambda r: r.verified, "accepted / judged: chance that a judged token is accepted"
    ),
    "block_efficiency": Metric(lambda r: r.tokens, lambda r: r.rounds, "emitted tokens per target forward"),
    "output_tokens": Metric(lambda r: r.tokens, lambda _: 1, "emitted tokens per prompt"),
    "total_variation": Metric(lambda r: r.tv_sum, lambda r: r.verified, "TV(p, q), mean over judged tokens"),
    "mean_weight": Metric(lambda r: r.w_sum, lambda r: r.verified, "weight on the target, mean over judged tokens"),
    "target_probability": Metric(lambda r: r.p_sum, lambda r: r.tokens, "p(x), mean over emitted tokens"),
    "rare_share": Metric(lambda r: r.rare, lambda r: r.tokens, f"share of emitted tokens with p(x) < {RARE:g}"),
    "output_tv": Metric(lambda r: r.output_tv_sum, lambda r: r.tokens, "TV(out, p), mean over emitted tokens"),
    "output_kl": Metric(lambda r: r.output_kl_sum, lambda r: r.tokens, "KL(out || p), nats per emitted token"),
    "overshoot_mass": Metric(
        lambda r: r.overshoot_sum, lambda r: r.tokens, f"mass of out above {OVERSHOOT:g} p, mean over emitted tokens"
    ),
    "frontier_gap": Metric(
        lambda r: r.gap_sum, lambda r: r.tokens, "1 - TV(p, q) + TV(out, p) - P(accept), mean over emitted tokens"
    ),
    "distinct_2": Metric(
        lambda r: r.distinct_bigrams, lambda r: r.tokens - 1, "a prompt's distinct bigrams / its bigrams"
    ),
}
PER_ROUND = ("drafted_per_round", "accepted_per_round")
RATES: Mapping[str, Callable[[ExampleResult], bool]] = {
    "truncated": lambda r: r.truncated,
    "empty": lambda r: r.empty,
    "looped": lambda r: r.looped,
}
# Against a baseline on the same prompts: "quality" is a difference always; these are differences and quotients.
PAIRED: Mapping[str, str] = {
    "token_acceptance": "difference",
    "block_efficiency": "quotient",
    "output_tokens": "quotient",
}


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """A method's numbers. `metrics` lacks those that are not defined for it: no acceptance without drafts."""

    label: str
    prompts: int
    metrics: dict[str, Estimate]
    accepted_histogram: list[int]

    def record(self) -> dict[str, Any]:
        """Plain JSON values, read back by `MethodSummary.of`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "MethodSummary":
        metrics = {name: Estimate(**estimate) for name, estimate in record["metrics"].items()}
        return cls(**{**record, "metrics": metrics})


def summarise(results: Sequence[ExampleResult], bootstrap: Bootstrap) -> MethodSummary:
    """Pool one method's results: quality (in [0, 1]), `METRICS` and `RATES`."""
    prompts = _prompts(results)
    metrics: dict[str, Estimate | None] = {}
    metrics["quality"] = _rate([[r.quality for r in group] for group in prompts], bootstrap)
    drafts = any(r.drafted for r in results)
    for name, metric in METRICS.items():
        if name in PER_ROUND and not drafts:
            continue  # autoregressive: 0 would be true and say nothing
        columns = _columns(prompts, metric)
        metrics[name] = None if columns is None else bootstrap.ratio(*columns)
    for name, is_so in RATES.items():
        metrics[name] = _rate([[float(is_so(r)) for r in group] for group in prompts], bootstrap)
    histogram = [sum(counts) for counts in zip_longest(*(r.accepted_histogram for r in results), fillvalue=0)]
    defined = {name: estimate for name, estimate in metrics.items() if estimate is not None}
    return MethodSummary(results[0].label, len(prompts), defined, histogram)


def paired(
    results: Sequence[ExampleResult], baseline: Sequence[ExampleResult], bootstrap: Bootstrap
) -> dict[str, Estimate]:
    """A method against a baseline on the same prompts: difference in quality, and what `PAIRED` lists."""
    found: dict[str, Estimate | None] = {"quality": paired_quality(results, baseline, bootstrap)}
    ours, theirs = matched(results, baseline)
    for name, kind in PAIRED.items():
        columns = _columns(ours, METRICS[name]), _columns(theirs, METRICS[name])
        if None not in columns:
            compare = bootstrap.difference if kind == "difference" else bootstrap.quotient
            found[name] = compare(*columns[0], *columns[1])  # type: ignore[misc]
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def paired_quality(
    results: Sequence[ExampleResult], baseline: Sequence[ExampleResult], bootstrap: Bootstrap
) -> Estimate:
    """Difference in quality, results - baseline, on the same prompts.

    Newcombe's interval where each prompt is simply right or wrong, else the bootstrap of the differences.
    """
    ours, theirs = matched(results, baseline)
    first, second = (np.array([_mean([r.quality for r in group]) for group in side]) for side in (ours, theirs))
    if max(map(len, ours + theirs)) == 1 and _is_binary(first) and _is_binary(second):
        a, b = first.astype(bool), second.astype(bool)
        return newcombe(*(int(np.count_nonzero(cell)) for cell in (a & b, a & ~b, ~a & b, ~a & ~b)))
    return bootstrap.mean(first - second)


def _rate(values: list[list[float]], bootstrap: Bootstrap) -> Estimate:
    """Mean over prompts of one metric: Wilson if it is one yes or no per prompt."""
    means = np.array([_mean(group) for group in values])
    if max(map(len, values)) == 1 and _is_binary(means):
        return wilson(int(means.sum()), len(means))
    return bootstrap.mean(means)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _is_binary(values: Array) -> bool:
    return bool(np.isin(values, (0, 1)).all())


def _prompts(results: Sequence[ExampleResult]) -> list[list[ExampleResult]]:
    """Results of one prompt together (a prompt may have been sampled several times), in order of first appearance."""
    groups: dict[str, list[ExampleResult]] = {}
    for result in results:
        groups.setdefault(result.id, []).append(result)
    return list(groups.values())


def matched(
    results: Sequence[ExampleResult], baseline: Sequence[ExampleResult]
) -> tuple[list[list[ExampleResult]], list[list[ExampleResult]]]:
    """Both sides grouped by prompt, in the same order; ValueError unless they have the same prompts."""
    ours, theirs = ({group[0].id: group for group in _prompts(side)} for side in (results, baseline))
    if ours.keys() != theirs.keys():
        raise ValueError(f"not the same prompts: {len(ours.keys() ^ theirs.keys())} are on one side only")
    return list(ours.values()), [theirs[key] for key in ours]


def _columns(prompts: list[list[ExampleResult]], metric: Metric) -> tuple[Array, Array] | None:
    """Per-prompt sums of a metric's top and bottom; None if it is not defined for this method."""
    sides = []
    for side in (metric.top, metric.bottom):
        values = [[side(r) for r in group] for group in prompts]
        if any(value is None for group in values for value in group):
            return None
        sides.append(np.array([sum(group) for group in values], dtype=np.float64))  # type: ignore[arg-type]
    return sides[0], sides[1]
