"""Is a method as good as strict verification? Asked by the search, where a trial that fails is infeasible, and by
promotion."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from diversed.evaluation.intervals import Bootstrap, Estimate
from diversed.evaluation.metrics import ExampleResult, paired_quality
from diversed.settings import EvaluateSettings

__all__ = ["Gate", "quality_gate"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Verdict of non-inferiority. `reasons` says in words why not; empty if passed."""

    passed: bool
    reasons: tuple[str, ...]
    difference: Estimate  # in quality, candidate - strict, paired
    unhealthy: float  # share of empty or looping outputs
    unhealthy_strict: float
    prompts_needed: int  # how many would do for this gate if the true difference is 0 and the spread is as seen


def quality_gate(
    candidate: Sequence[ExampleResult],
    strict: Sequence[ExampleResult],
    settings: EvaluateSettings,
    bootstrap: Bootstrap,
) -> Gate:
    """Candidate against strict on the same prompts. All must hold:

    - the lower 95% bound of the paired difference in quality lies above -margin: non-inferiority must be shown, few
      prompts cannot show it;
    - the share of empty or looping outputs exceeds strict's by no more than `loop_margin`;
    - some output is neither empty nor a loop. Such runs are the fastest of all, and no comparison with an equally
      broken strict run can make one pass.
    """
    difference = paired_quality(candidate, strict, bootstrap)
    share, strict_share = _unhealthy(candidate), _unhealthy(strict)
    needed = _prompts_needed(difference, settings.margin)
    reasons = []
    if difference.low <= -settings.margin:
        interval = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}], n = {difference.n}"
        reasons.append(f"quality minus strict's is {interval}: a loss of {settings.margin:g} is not ruled out")
        if difference.high >= 0:
            reasons.append(f"nor is equality: some {needed} prompts would tell")
    if share > strict_share + settings.loop_margin:
        reasons.append(
            f"{share:.1%} of the outputs are empty or loop; strict has {strict_share:.1%}, "
            f"and {settings.loop_margin:.1%} more are allowed"
        )
    if share == 1:
        reasons.append("every output is empty or loops")
    return Gate(not reasons, tuple(reasons), difference, share, strict_share, needed)


def _unhealthy(results: Sequence[ExampleResult]) -> float:
    return sum(result.empty or result.looped for result in results) / len(results)


def _prompts_needed(difference: Estimate, margin: float) -> int:
    """Prompts at which the lower half-width would be the margin over 1.43: 80% power at a true difference of 0."""
    half = difference.value - difference.low
    return max(ceil(difference.n * (half / margin * (1.96 + 0.84) / 1.96) ** 2), 2)
