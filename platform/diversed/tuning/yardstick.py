"""What all candidates are measured with: strict's results on the validation prompts, and the pair's costs here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from diversed.cluster import engine_for
from diversed.decoding.costs import Costs, profile_costs
from diversed.evaluation.compare import Variant, compare, evaluate_variant, run_here, samples_of
from diversed.evaluation.intervals import Bootstrap
from diversed.evaluation.metrics import ExampleResult
from diversed.models import Pair
from diversed.settings import Method, Settings
from diversed.tasks import Split, get_task
from diversed.tuning.objective import Score, score
from diversed.verifier import Head

__all__ = ["Yardstick", "assess", "measured_costs", "yardstick"]


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What all candidates are measured with: strict's results on the validation prompts, and the costs."""

    strict: list[ExampleResult]
    costs: Costs

    def score(self, results: Sequence[ExampleResult], settings: Settings) -> Score:
        """Score of results on the validation prompts under `settings`, the candidate's own."""
        bootstrap = Bootstrap(settings.evaluate.resamples, settings.seed)
        return score(results, self.strict, settings.decode.draft_length, self.costs, settings.evaluate, bootstrap)


def yardstick(settings: Settings, pair: Pair, costs: Costs, folder: Path, console: Console) -> Yardstick:
    """Strict on the validation prompts, from `folder` if it is recorded there."""
    task = get_task(settings.task.name)
    examples = task.examples(settings.task, Split.VALIDATION, settings.seed)
    strict = Variant(Method.STRICT.value, settings.decode.model_copy(update={"method": Method.STRICT}))
    run = run_here(pair, task, settings, partial(engine_for, settings.pair, pair))
    results = compare(pair, settings, [strict], examples, run, folder, console)
    return Yardstick(results[strict.cell, strict.label], costs)


def assess(settings: Settings, pair: Pair, head: Head, measure: Yardstick) -> Score:
    """Score of a verifier on the validation prompts, decoded under `settings`."""
    task = get_task(settings.task.name)
    examples = task.examples(settings.task, Split.VALIDATION, settings.seed)
    decode = settings.decode.model_copy(update={"method": Method.DIVERSED})
    variant = Variant(Method.DIVERSED.value, decode, head)
    engine = engine_for(settings.pair, pair, decode, head)
    try:
        results = evaluate_variant(pair, task, settings, variant, samples_of(settings, examples), engine)
    finally:
        engine.close()
    return measure.score(results, settings)


def measured_costs(settings: Settings, pair: Pair, draft_lengths: Iterable[int] = ()) -> Costs:
    """The pair's costs, kept in the output folder."""
    return profile_costs(pair, draft_lengths, settings.output / "costs")
