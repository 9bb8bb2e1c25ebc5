"""Train one verifier: the ensemble head of a pair, on a task's training prompts.

    python -m jobs.train_verifier                                        # the embedded arithmetic pair
    python -m jobs.train_verifier --pair smollm2 --task cnndm --data cnndm.jsonl --lambda 0.5

Checkpoints go to `<output>/train/<pair>-<task>/<key>/epoch-NNN`, each a verifier folder for `--verifier-checkpoint`;
the key stands for the settings that matter. Curves go to MLflow. An interrupted run is taken up after its last epoch.
"""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diversed.settings import Placement, Settings
from jobs._main import job

if TYPE_CHECKING:
    from diversed.tracking import TrackedRun
    from diversed.training import Trainer


def train_verifier(settings: Settings) -> Path:
    """The last checkpoint."""
    from rich.console import Console

    from diversed.cluster import connect, engine_for
    from diversed.models import load_pair, set_threads
    from diversed.tasks import get_task
    from diversed.tracking import Tracker
    from diversed.training import Trainer

    console = Console()
    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    trainer = Trainer(settings, pair, get_task(settings.task.name), partial(engine_for, settings.pair, pair), console)
    folder = settings.output / "train" / settings.label / trainer.key
    tracker = Tracker(settings)
    cluster = connect() if settings.pair.placement is Placement.ACTORS else nullcontext()
    with cluster, tracker.run(f"train {settings.label}", key=f"train-{trainer.key}", tags={"stage": "train"}) as run:
        checkpoint = train_and_log(trainer, folder, run)
    console.print(f"verifier: {checkpoint}", soft_wrap=True, highlight=False)
    return checkpoint


def train_and_log(trainer: "Trainer", folder: Path, run: "TrackedRun") -> Path:
    """Train into `folder` with curves in `run`: `update/...` by update, `epoch/...` by epoch; the last checkpoint."""
    from diversed.training import latest_checkpoint

    for report in trainer.epochs(folder):
        for row in trainer.updates:
            run.log_metrics({f"update/{name}": value for name, value in row.items()}, step=int(row["update"]))
        run.log_metrics({f"epoch/{name}": value for name, value in report.items()}, step=int(report["epoch"]))
    checkpoint = latest_checkpoint(folder)
    run.log_artifacts(checkpoint, "verifier")
    return checkpoint


main = job("Train one verifier on a task's training prompts.")(train_verifier)

if __name__ == "__main__":
    sys.exit(main())
