"""What a search maximises, and what promotion demands. Defined here once; pure functions of recorded results and costs.

    predicted speed-up = block efficiency * t_AR / (t_target(N+1) + N * t_draft)

over autoregressive decoding, subject to `evaluation.gate.quality_gate`: quality non-inferior to strict's on the same
prompts under common random numbers, and no more empty or looping outputs than strict has. A repetition loop is the
fastest run of all, so a candidate that fails the gate gets no credit for its speed, only a measure of its distance.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diversed.decoding.costs import Costs, predicted_speedup
from diversed.evaluation.gate import Gate, quality_gate
from diversed.evaluation.intervals import Bootstrap, Estimate
from diversed.evaluation.metrics import ExampleResult, MethodSummary, matched, summarise
from diversed.settings import EvaluateSettings

__all__ = ["CURVES", "Contender", "Decision", "Score", "decide", "score"]

# What a search logs of each report, beside the trainer's own numbers.
CURVES = (
    "score",
    "feasible",
    "speedup_predicted",
    "quality",
    "quality_difference",
    "quality_difference_low",
    "unhealthy",
    "acceptance_rate",
    "token_acceptance",
    "block_efficiency",
    "mean_weight",
    "output_tokens",
)


@dataclass(frozen=True, slots=True)
class Score:
    """A candidate's place in the search: `value` is the predicted speed-up (above 0) if it passes the gate, else minus
    the distance to passing (0 or below). So every feasible candidate ranks above every infeasible one."""

    value: float
    gate: Gate
    speedup: Estimate  # predicted, over autoregressive
    summary: MethodSummary

    @property
    def feasible(self) -> bool:
        return self.gate.passed

    @property
    def reason(self) -> str:
        """Why it is infeasible; empty if it is not."""
        return "; ".join(self.gate.reasons)

    def report(self) -> dict[str, float | str]:
        """Flat values for Tune and MLflow; `reason` is the only text."""
        pooled = ("quality", "acceptance_rate", "token_acceptance", "block_efficiency", "mean_weight", "output_tokens")
        metrics = {name: self.summary.metrics[name].value for name in pooled if name in self.summary.metrics}
        return {
            "score": self.value,
            "feasible": float(self.feasible),
            "speedup_predicted": self.speedup.value,
            "quality_difference": self.gate.difference.value,
            "quality_difference_low": self.gate.difference.low,
            "unhealthy": self.gate.unhealthy,
            **metrics,
            "reason": self.reason,
        }


def score(
    candidate: Sequence[ExampleResult],
    strict: Sequence[ExampleResult],
    draft_length: int,
    costs: Costs,
    settings: EvaluateSettings,
    bootstrap: Bootstrap,
) -> Score:
    """Score of a candidate's results against strict's on the same prompts. ValueError if the prompts differ."""
    gate = quality_gate(candidate, strict, settings, bootstrap)
    summary = summarise(candidate, bootstrap)
    speedup = _speedup(summary.metrics["block_efficiency"], draft_length, costs)
    return Score(speedup.value if gate.passed else -_shortfall(gate, settings), gate, speedup, summary)


def _shortfall(gate: Gate, settings: EvaluateSettings) -> float:
    """How far from passing: quality missing at the interval's lower end, plus unhealthy outputs too many."""
    quality = max(0.0, -settings.margin - gate.difference.low)
    unhealthy = max(0.0, gate.unhealthy - gate.unhealthy_strict - settings.loop_margin)
    return quality + unhealthy + (1.0 if gate.unhealthy == 1 else 0.0)


def _speedup(block_efficiency: Estimate, draft_length: int, costs: Costs) -> Estimate:
    """The costs are one measurement for all candidates, so the interval is that of the block efficiency."""
    return block_efficiency.scaled(predicted_speedup(1.0, draft_length, costs))


@dataclass(frozen=True, slots=True)
class Contender:
    """A verifier's results on the test prompts, and the draft length it runs with."""

    name: str
    results: Sequence[ExampleResult]
    draft_length: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the challenger becomes champion. `reasons` has one line per condition, met or not."""

    promoted: bool
    reasons: tuple[str, ...]
    gate: Gate
    speedup: Estimate  # of the challenger, predicted, over autoregressive
    gain: Estimate | None  # over the champion's; None without a champion

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        estimates = {
            "quality_difference": self.gate.difference,
            "speedup_predicted": self.speedup,
            "speedup_gain": self.gain,
        }
        plain = {name: None if e is None else [e.value, e.low, e.high, e.n] for name, e in estimates.items()}
        return {"promoted": self.promoted, "reasons": list(self.reasons), **plain}

    def tags(self) -> dict[str, str]:
        """The same as a registered version's tags."""
        return {f"promotion.{name}": json.dumps(value) for name, value in self.record().items()}


def decide(
    challenger: Contender,
    champion: Contender | None,
    strict: Sequence[ExampleResult],
    costs: Costs,
    settings: EvaluateSettings,
    bootstrap: Bootstrap,
) -> Decision:
    """Promotion on the same test prompts. Both must hold with 95% intervals:

    - the challenger passes the quality gate against strict;
    - its predicted speed-up exceeds the champion's (paired over prompts); without a champion it exceeds 1.
    """
    gate = quality_gate(challenger.results, strict, settings, bootstrap)
    speedup = _speedup(
        summarise(challenger.results, bootstrap).metrics["block_efficiency"], challenger.draft_length, costs
    )
    quality = f"quality against strict {_signed(gate.difference)}, margin {settings.margin:g}, n = {gate.difference.n}"
    reasons = [f"met: {quality}" if gate.passed else f"not met: {'; '.join(gate.reasons)}"]
    if champion is None:
        gain, faster = None, speedup.low > 1
        told = (
            f"predicted speed-up over autoregressive {_plain(speedup)}, above 1 is asked for, as there was no champion"
        )
    else:
        gain = _gain(challenger, champion, costs, bootstrap)
        faster = gain.low > 0
        told = f"predicted speed-up {_plain(speedup)}, {_signed(gain)} against {champion.name}, above 0 is asked for"
    reasons.append(f"{'met' if faster else 'not met'}: {told}")
    return Decision(gate.passed and faster, tuple(reasons), gate, speedup, gain)


def _gain(challenger: Contender, champion: Contender, costs: Costs, bootstrap: Bootstrap) -> Estimate:
    """Paired difference of the predicted speed-ups."""
    ours, theirs = matched(challenger.results, champion.results)
    per_block = [predicted_speedup(1.0, contender.draft_length, costs) for contender in (challenger, champion)]
    gain = bootstrap.difference(
        [sum(result.tokens for result in prompt) * per_block[0] for prompt in ours],
        [sum(result.rounds for result in prompt) for prompt in ours],
        [sum(result.tokens for result in prompt) * per_block[1] for prompt in theirs],
        [sum(result.rounds for result in prompt) for prompt in theirs],
    )
    if gain is None:
        raise ValueError("no rounds were run")
    return gain


def _plain(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"
