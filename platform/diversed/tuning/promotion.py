"""From a verifier to the champion: registered as challenger, compared on the test prompts, promoted or not."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from diversed.cluster import engine_for
from diversed.errors import CheckpointError
from diversed.evaluation.compare import Results, Variant, compare, run_here
from diversed.evaluation.intervals import Bootstrap
from diversed.models import Pair
from diversed.settings import Method, Settings
from diversed.tasks import Split, get_task
from diversed.tracking import ModelVersion, Registry, TrackedRun
from diversed.tuning.objective import Contender, Decision, decide
from diversed.tuning.yardstick import measured_costs
from diversed.verifier import load_verifier

__all__ = ["CHALLENGER", "CHAMPION", "Promotion", "present_champion", "promote"]

CHALLENGER, CHAMPION = "challenger", "champion"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What became of a challenger. `champion` is the version that holds the alias now, None if none does."""

    challenger: ModelVersion
    champion: ModelVersion | None
    decision: Decision | None  # None: the challenger is the champion already
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For the screen: what was decided, and why."""
        version = f"{self.challenger.name} version {self.challenger.version}"
        if self.decision is None:
            return [f"the verifier is the champion already: {version}", *self.notes]
        verdict = "promoted to champion" if self.decision.promoted else "not promoted"
        return [f"{version} is {verdict}", *self.decision.reasons, *self.notes]


def promote(
    settings: Settings, pair: Pair, verifier: Path, registry: Registry, run: TrackedRun, folder: Path, console: Console
) -> Promotion:
    """Register `verifier` as challenger, and as champion if it passes `objective.decide` on the test prompts.

    Strict, challenger and present champion are decoded on the same prompts with common random numbers; what `folder`
    holds of exactly these prompts, settings and weights is not decoded again. A champion that is not of this pair (its
    models were made anew since) cannot be decoded: that is noted, and it counts as none. `run` gets the decision.
    """
    model = settings.registered_model
    head, card = load_verifier(verifier, pair)
    decode = settings.decode.model_copy(update={"method": Method.DIVERSED, "draft_length": card.draft_length})
    strict = Variant(Method.STRICT.value, decode.model_copy(update={"method": Method.STRICT}))
    ours = Variant(Method.DIVERSED.value, decode, head)
    champion, theirs, notes = present_champion(settings, pair, registry)
    if champion is not None and theirs is not None and _same(ours, theirs):
        return Promotion(champion, champion, None, notes)

    task = get_task(settings.task.name)
    examples = task.examples(settings.task, Split.TEST, settings.seed)
    variants = [strict, ours, *([theirs] if theirs else [])]
    run_parts = run_here(pair, task, settings, partial(engine_for, settings.pair, pair))
    results = compare(pair, settings, variants, examples, run_parts, folder, console)
    decision = decide(
        _contender(ours, results),
        _contender(theirs, results) if theirs else None,
        results[strict.cell, strict.label],
        measured_costs(settings, pair, [variant.decode.draft_length for variant in variants]),
        settings.evaluate,
        Bootstrap(settings.evaluate.resamples, settings.seed),
    )
    run.log_table([{"condition": reason} for reason in decision.reasons], "promotion.json")
    tags = {"pair": pair.name, "task": settings.task.name, **decision.tags()}
    version = registry.register(model, verifier, run.id, tags, f"lambda {card.lam:g}, N = {card.draft_length}")
    registry.set_alias(model, CHALLENGER, version)
    challenger = registry.resolve(f"models:/{model}/{version}")
    if decision.promoted:
        registry.set_alias(model, CHAMPION, version)
        champion = challenger
    run.set_tags({"promotion.version": str(version), "promotion.promoted": str(decision.promoted).lower()})
    return Promotion(challenger, champion, decision, notes)


def _same(ours: Variant, theirs: Variant) -> bool:
    """The same weights and draft length: training is seeded, so a pipeline that runs twice meets its own champion."""
    if ours.head is None or theirs.head is None or ours.decode != theirs.decode:
        return False
    there = theirs.head.state_dict()
    return all(torch.equal(value, there[name]) for name, value in ours.head.state_dict().items())


def _contender(variant: Variant, results: Results) -> Contender:
    return Contender(variant.label, results[variant.cell, variant.label], variant.decode.draft_length)


def present_champion(
    settings: Settings, pair: Pair, registry: Registry
) -> tuple[ModelVersion | None, Variant | None, tuple[str, ...]]:
    """The champion with the variant that it runs as, under the draft length that it was trained for.

    None, None and a note if there is one that cannot run on this pair.
    """
    champion = registry.alias_version(settings.registered_model, CHAMPION)
    if champion is None:
        return None, None, ()
    label = f"champion version {champion.version}"
    try:
        with registry.files(champion.uri) as folder:
            head, card = load_verifier(folder, pair)
    except CheckpointError as error:
        return None, None, (f"{label} is not compared: {error}",)
    decode = settings.decode.model_copy(update={"method": Method.DIVERSED, "draft_length": card.draft_length})
    return champion, Variant(label, decode, head), ()
