"""Compare autoregressive, strict, static and DIVERSED decoding on the test prompts: quality, acceptance and speed.

    python -m jobs.evaluate --verifier-checkpoint models:/diversed-arithmetic-arithmetic@champion
    python -m jobs.evaluate --pair smollm2 --task cnndm --data cnndm.jsonl     # no verifier: everything but DIVERSED

Every method gets the same prompts and the same random numbers. Results go to `<output>/evaluations/<pair>-<task>/<key>`
and to MLflow; an interrupted run is taken up where it stopped. `python -m jobs.report FOLDER` puts them into README.
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
    from rich.console import Console

    from diversed.evaluation.rows import Comparison
    from diversed.models import Pair
    from diversed.tracking import TrackedRun
    from diversed.verifier import Head


def evaluate(settings: Settings) -> None:
    from diversed.cluster import connect
    from diversed.evaluation.run import evaluation_key
    from diversed.models import load_pair, set_threads
    from diversed.tracking import Tracker

    console = screen()
    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    tracker = Tracker(settings)
    head = load_head(settings, pair)
    key = evaluation_key(settings, head)
    folder = settings.output / "evaluations" / settings.label / key
    cluster = connect() if settings.pair.placement is Placement.ACTORS else nullcontext()
    with cluster, tracker.run(f"evaluate {settings.label}", key=f"evaluate-{key}", tags={"stage": "evaluate"}) as run:
        evaluate_and_log(settings, pair, head, folder, run, console)
    console.print(f"results: {folder}", soft_wrap=True, highlight=False)


def load_head(settings: Settings, pair: "Pair") -> "Head | None":
    """The verifier of `verifier.checkpoint`, a folder or models:/ URI; None if there is none."""
    from diversed.tracking import Registry
    from diversed.verifier import load_verifier

    checkpoint = settings.verifier.checkpoint
    if checkpoint is None:
        return None
    is_registered = checkpoint.startswith("models:/")
    folder = Registry.of(settings).download(checkpoint) if is_registered else Path(checkpoint)
    return load_verifier(folder, pair)[0]


def evaluate_and_log(
    settings: Settings, pair: "Pair", head: "Head | None", folder: Path, run: "TrackedRun", console: "Console"
) -> "Comparison":
    """Evaluate into `folder`, show the table, and put numbers, table, figure and raw records into `run`."""
    from diversed.cluster import engine_for
    from diversed.evaluation.run import run_evaluation
    from diversed.evaluation.tables import console_table, headlines, table_rows
    from diversed.tasks import get_task

    engines = partial(engine_for, settings.pair, pair)
    comparison = run_evaluation(settings, pair, get_task(settings.task.name), head, engines, folder, console)
    console.print(console_table(comparison))
    for line in headlines(comparison):
        console.print(f"- {line}", highlight=False)
    console.print(f"figure: {folder / 'pareto.png'}", soft_wrap=True, highlight=False)
    rows = table_rows(comparison)
    run.log_metrics({f"{metric_name(row['method'])}/{row['metric']}": row["value"] for row in rows})
    run.log_table(rows, "comparison_table.json")
    run.log_artifacts(folder, "evaluation")
    return comparison


def metric_name(label: str) -> str:
    """A label in the letters that MLflow allows."""
    return "".join(letter if letter.isalnum() or letter in "-_. /" else " " for letter in label)


main = job("Compare all decoding methods on a task's test prompts.")(evaluate)

if __name__ == "__main__":
    sys.exit(main())
