"""Compare decoding methods on the test prompts: quality, acceptance, speed and fidelity, each with its interval.

    python -m jobs.evaluate --verifier-checkpoint models:/diversed-arithmetic-arithmetic@champion
    python -m jobs.evaluate --pair smollm2 --task cnndm --data cnndm.jsonl     # no verifier: everything but DIVERSED
    python -m jobs.evaluate --evaluate.methods strict,lossy:alpha=0.3/0.5,token-v3,typical:repaired=yes \\
        --evaluate.temperatures 0,0.1,1 --evaluate.draft-lengths 3,5,7 --evaluate.samples 3

The last line is a grid; each combination of temperature and draft length is a cell of it. Every method gets the same
prompts and the same random numbers. Results go to `<output>/evaluations/<pair>-<task>/<key>` and to MLflow; an
interrupted run is taken up where it stopped. `python -m jobs.report FOLDER ...` makes tables and pages of them.
"""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diversed.settings import Placement, Settings
from jobs._main import job
from jobs._stages import screen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from diversed.evaluation.compare import Variant
    from diversed.evaluation.rows import Comparison
    from diversed.models import Pair
    from diversed.tracking import TrackedRun
    from diversed.verifier import Head, VerifierCard


def evaluate(settings: Settings, title: str | None = None) -> list[Path]:
    """The folder of each task's evaluation. `title` is what a study calls it."""
    from diversed.cluster import connect
    from diversed.evaluation.run import evaluation_key
    from diversed.models import load_pair, set_threads
    from diversed.tracking import Tracker

    console = screen()
    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    work = [(each, variants_of(each, pair)) for each in settings.per_task()]  # what is wrong is said first
    tracker = Tracker(settings)
    folders = []
    alone = settings.evaluate.workers == 1 and settings.pair.placement is Placement.IN_PROCESS
    with nullcontext() if alone else connect():
        for each, variants in work:
            key = evaluation_key(each, variants)
            folder = each.output / "evaluations" / each.label / key
            tags = {"stage": "evaluate"}
            with tracker.run(f"evaluate {each.label}", key=f"evaluate-{key}", tags=tags) as run:
                evaluate_and_log(each, pair, variants, folder, run, console, title)
            console.print(f"results: {folder}", soft_wrap=True, highlight=False)
            folders.append(folder)
    return folders


def variants_of(settings: Settings, pair: "Pair") -> "list[Variant]":
    """What `settings.evaluate` names, with the verifiers opened."""
    from diversed.evaluation.grid import grid

    return grid(settings, partial(load_head, settings, pair))


def load_head(settings: Settings, pair: "Pair", checkpoint: str) -> "Head":
    """The verifier of a folder or models:/ URI."""
    return _verifier(settings, pair, checkpoint)[0]


def _verifier(settings: Settings, pair: "Pair", checkpoint: str) -> "tuple[Head, VerifierCard]":
    from diversed.tracking import verifier_files
    from diversed.verifier import load_verifier

    with verifier_files(settings, checkpoint) as folder:
        return load_verifier(folder, pair)


def evaluate_and_log(
    settings: Settings,
    pair: "Pair",
    variants: "Sequence[Variant]",
    folder: Path,
    run: "TrackedRun",
    console: "Console",
    title: str | None = None,
) -> "list[Comparison]":
    """Evaluate into `folder`, show the table, and put numbers, table, figure and raw records into `run`.

    Parts are decoded by Ray workers where a cluster is connected that has room for more than one, else here.
    """
    import ray

    from diversed.cluster import engine_for
    from diversed.evaluation.compare import run_here
    from diversed.evaluation.run import run_evaluation
    from diversed.evaluation.tables import console_table, headlines, table_rows
    from diversed.evaluation.workers import Workers, workers_for
    from diversed.tasks import get_task

    task, engines = get_task(settings.task.name), partial(engine_for, settings.pair, pair)
    checkpoint = settings.verifier.checkpoint
    trained_on = None if checkpoint is None else _verifier(settings, pair, checkpoint)[1].task
    origin = {"run_id": run.id, "title": title, "trained_on": trained_on}
    count = workers_for(settings) if ray.is_initialized() else 1
    with Workers(settings, count) if count > 1 else nullcontext(run_here(pair, task, settings, engines)) as parts:
        comparisons = run_evaluation(settings, pair, task, variants, parts, engines, folder, console, **origin)
    console.print(console_table(comparisons[0]))
    for line in headlines(comparisons[0]):
        console.print(f"- {line}", highlight=False)
    if len(comparisons) > 1:
        console.print(f"{len(comparisons)} cells; this is the first, all are in the report", highlight=False)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, highlight=False)
    rows = table_rows(comparisons[0])
    run.log_metrics({f"{metric_name(row['method'])}/{row['metric']}": row["value"] for row in rows})
    run.log_table(rows, "comparison_table.json")
    run.log_artifacts(folder, "evaluation")
    return comparisons


def metric_name(label: str) -> str:
    """A label in the letters that MLflow allows."""
    return "".join(letter if letter.isalnum() or letter in "-_. /" else " " for letter in label)


main = job("Compare all decoding methods on a task's test prompts.")(evaluate)

if __name__ == "__main__":
    sys.exit(main())
