"""One evaluation from prompts to report, in a folder that an interrupted run is taken up again from."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from diversed.artifacts import write_run_record
from diversed.decoding.costs import profile_costs
from diversed.errors import ConfigError
from diversed.evaluation.compare import EngineFactory, Runner, Variant, compare, head_fingerprint
from diversed.evaluation.grid import cells, matched_static
from diversed.evaluation.report import write_report
from diversed.evaluation.rows import Comparison
from diversed.evaluation.speed import measure_speed
from diversed.models import Pair
from diversed.settings import Method, Settings
from diversed.tasks import Split, Task

__all__ = ["evaluation_key", "run_evaluation"]


def run_evaluation(
    settings: Settings,
    pair: Pair,
    task: Task,
    variants: Sequence[Variant],
    run: Runner,
    engine_factory: EngineFactory,
    folder: Path,
    console: Console,
    **origin: str | None,
) -> list[Comparison]:
    """Compare `variants` (see `grid`) on the test prompts, measure their speed, write the report into `folder`.

    `run` decodes the parts of the comparison, `engine_factory` makes the engines that are timed. With
    `settings.resume`, what is recorded there for the same work is not run again. In each cell with DIVERSED one more
    static ensemble is run: the one that accepts as much. `origin` goes into the record: `run_id`, `title`,
    `trained_on`.
    Returns one comparison per cell, that of `settings.decode` first.
    """
    examples = task.examples(settings.task, Split.TEST, settings.seed)
    if len(examples) < 2:
        raise ConfigError(f"task.test_size = {len(examples)}: an interval needs at least 2 prompts")
    if not any(variant.decode.method is Method.STRICT for variant in variants):
        raise ConfigError("evaluate.methods: strict is missing; all others are compared with it")
    if not settings.resume and folder.exists():
        shutil.rmtree(folder)
    evaluation = {"metric": task.metric_name, "pair": dict(pair.identity), **origin}
    write_run_record(folder, settings, evaluation=evaluation)
    results = compare(pair, settings, variants, examples, run, folder / "results", console)
    matched = [
        variant for decode in cells(settings) if (variant := matched_static(decode, results, variants)) is not None
    ]
    compare(pair, settings, matched, examples, run, folder / "results", console)
    decode = cells(settings)[0]
    # One cell is timed: all others would take as long again, and the cost model tells of them.
    timed = [variant for variant in [*variants, *matched] if _is_in(variant, decode.temperature, decode.draft_length)]
    lengths = [cell.draft_length for cell in cells(settings)]
    costs = profile_costs(pair, lengths, settings.output / "costs")
    measure_speed(pair, settings, decode, timed, examples, costs, engine_factory, folder / "speed.json", console)
    return write_report(folder)


def _is_in(variant: Variant, temperature: float, draft_length: int) -> bool:
    decode = variant.decode
    return decode.temperature == temperature and (not decode.method.drafts or decode.draft_length == draft_length)


def evaluation_key(settings: Settings, variants: Sequence[Variant]) -> str:
    """Names the folder of an evaluation: a digest of all settings that have an effect on it."""
    record = settings.record()
    parts = {name: record[name] for name in ("seed", "pair", "task", "decode", "evaluate")}
    parts["evaluate"].pop("workers")
    parts["heads"] = {v.label: head_fingerprint(v.head) for v in variants if v.head is not None}
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=6).hexdigest()
