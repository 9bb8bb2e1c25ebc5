"""One evaluation from prompts to report, in a folder that an interrupted run is taken up again from."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from diversed.artifacts import write_run_record
from diversed.decoding.costs import profile_costs
from diversed.errors import ConfigError
from diversed.evaluation.compare import (
    EngineFactory,
    Variant,
    compare,
    head_fingerprint,
    matched_static,
    standard_variants,
)
from diversed.evaluation.metrics import ExampleResult
from diversed.evaluation.report import write_report
from diversed.evaluation.rows import Comparison
from diversed.evaluation.speed import measure_speed
from diversed.models import Pair
from diversed.settings import Settings
from diversed.tasks import Split, Task

__all__ = ["evaluation_key", "run_evaluation"]


def run_evaluation(
    settings: Settings,
    pair: Pair,
    task: Task,
    head: torch.nn.Module | None,
    engine_factory: EngineFactory,
    folder: Path,
    console: Console,
) -> Comparison:
    """Compare all methods on the test prompts, measure their speed, write the report into `folder`.

    With `settings.resume`, methods and times that are recorded there for the same work are not run again. Besides the
    grid, one more static ensemble is run: the one that accepts as much as DIVERSED did.
    """
    examples = task.examples(settings.task, Split.TEST, settings.seed)
    if len(examples) < 2:
        raise ConfigError(f"task.test_size = {len(examples)}: an interval needs at least 2 prompts")
    if not settings.resume and folder.exists():
        shutil.rmtree(folder)
    write_run_record(folder, settings, evaluation={"metric": task.metric_name, "pair": dict(pair.identity)})
    variants = standard_variants(settings, head)
    results: dict[str, list[ExampleResult]] = {}

    def queue() -> Iterator[Variant]:
        yield from variants
        if (matched := matched_static(settings, results)) is not None:
            variants.append(matched)
            yield matched

    compare(pair, task, settings, queue(), examples, engine_factory, folder / "results", console, results)
    costs = profile_costs(pair, [settings.decode.draft_length], settings.output / "costs")
    measure_speed(pair, settings, variants, examples, costs, engine_factory, folder / "speed.json", console)
    return write_report(folder)


def evaluation_key(settings: Settings, head: torch.nn.Module | None) -> str:
    """Names the folder of an evaluation: a digest of all settings that have an effect on it."""
    record = settings.record()
    parts = {name: record[name] for name in ("seed", "pair", "task", "decode", "evaluate")}
    parts["head"] = None if head is None else head_fingerprint(head)
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=6).hexdigest()
