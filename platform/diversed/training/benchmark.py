"""The benchmark's suite `learner`: where the time of a training update goes."""

import tempfile
from pathlib import Path

from rich.console import Console

from diversed.decoding import Engine, Weigh, build_engine
from diversed.evaluation.benchmark import Report, Row, Spread, ratio
from diversed.evaluation.progress import Bar
from diversed.models import Pair
from diversed.settings import DecodeSettings, Settings
from diversed.tasks import Task
from diversed.training.trainer import Trainer

__all__ = ["learner_report", "measure_learner"]

WARMUPS = 1  # updates before those that count

COLUMNS = {
    "updates_per_second": "rollouts, rewards and optimiser steps of one update",
    "rollout_tokens_per_second": "emitted tokens over seconds of rollouts and rewards",
    "learner_share": "seconds of the optimiser's steps over those of the whole update",
}


def measure_learner(settings: Settings, pair: Pair, task: Task, console: Console) -> Report:
    """Train for `benchmark.repetitions` updates, all on the same `train.prompts_per_update` prompts with rollouts of
    their own, in a folder that is thrown away. Each update is an epoch; the checkpoint after it is not timed."""
    prompts = min(settings.train.prompts_per_update, settings.task.train_size)
    epochs = WARMUPS + settings.benchmark.repetitions
    small = settings.updated({"task.train_size": prompts, "train.epochs": epochs})

    def engines(decode: DecodeSettings, head: Weigh | None, collect: bool) -> Engine:
        return build_engine(pair, decode, head, collect)

    trainer = Trainer(small, pair, task, engines)
    updates: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="diversed-benchmark-") as folder,
        Bar(console, "learner", epochs, "updates") as bar,
    ):
        for _ in trainer.epochs(Path(folder)):
            updates += trainer.updates
            bar.update(len(updates))
    rollouts = prompts * settings.train.rollouts
    report = learner_report(updates[WARMUPS:], rollouts)
    report.about |= {"train": settings.record()["train"], "prompts": prompts, "rollouts_per_update": rollouts}
    return report


def learner_report(updates: list[dict[str, float]], rollouts: int) -> Report:
    """Table and record of rows of `Trainer.updates`, each of so many rollouts."""
    sampling = [row["seconds_rollouts"] for row in updates]
    learning = [row["seconds_learner"] for row in updates]
    whole = [a + b for a, b in zip(sampling, learning, strict=True)]
    tokens = [row["output_tokens"] * rollouts for row in updates]
    row: Row = {
        "name": "update",
        "updates_per_second": Spread.of([1 / seconds for seconds in whole]).median,
        "rollout_tokens_per_second": ratio(tokens, sampling).median,
        "learner_share": ratio(learning, whole),
    }
    about = {"warmup": WARMUPS, "scope": "wall clock of training updates, models in this process"}
    remarks = ["the first update is left out of all numbers"]
    return Report(COLUMNS, {"learner": [row]}, {"update": updates}, about, remarks)
