"""The search: Ray Tune over verifiers' settings, taken up again after a kill, each epoch a checkpoint and a report.

    <folder>/T*/strict.jsonl   strict's results on the validation prompts, which every trial is compared with
    <folder>/tune/             Tune's experiment: trials, checkpoints, TensorBoard events, Optuna's state
    <folder>/candidates.json   what was found

A trial trains one verifier and scores it on the validation prompts after each epoch (`objective.score`). Trials share
the seed, so they differ by their settings and not by their luck.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from rich.console import Console

from diversed.artifacts import write_json_atomic
from diversed.cluster import engine_for
from diversed.errors import DiversedError
from diversed.models import Pair, load_pair, set_threads
from diversed.settings import PairSettings, Placement, Settings, flatten, from_record
from diversed.tasks import get_task
from diversed.tracking import TrackedRun, Tracker
from diversed.tracking.runs import RUN_KEY_TAG
from diversed.tracking.trials import TrialCallback
from diversed.training import Trainer, latest_checkpoint
from diversed.training.rollouts import CURVES as ROLLOUT_CURVES
from diversed.tuning.candidates import Candidate, Outcome, select
from diversed.tuning.objective import CURVES
from diversed.tuning.space import Space
from diversed.tuning.yardstick import Yardstick, assess

__all__ = ["search"]

EXPERIMENT, CANDIDATES = "tune", "candidates.json"
ENVIRONMENT = {
    "TUNE_GLOBAL_CHECKPOINT_S": "0",  # a snapshot per event; by default a killed driver loses its last 10 s or more
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints boxes at any verbosity
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # a job ends at the first signal; Tune would return as if it were done
}


def search(
    settings: Settings,
    space: Space,
    measure: Yardstick,
    folder: Path,
    tracker: Tracker,
    run: TrackedRun,
    placement: list[dict[str, float]],
    console: Console,
    incumbent: Candidate | None = None,
) -> Outcome:
    """Search `space` for the verifier of the highest score, with Ray connected; trials become children of `run`.

    An interrupted search of `folder` is taken up: finished trials are kept, unfinished ones go on from their last
    epoch. `placement` are the bundles of one trial. `incumbent` is a candidate trained under `settings` themselves: it
    competes, and its point is not tried again. DiversedError if all trials failed.
    """
    record = settings.updated({"resume": True}).record()  # a trial that is begun again has no other way to go on
    trainable = tune.with_resources(
        tune.with_parameters(run_trial, record=record, measure=measure),
        tune.PlacementGroupFactory(placement, strategy="PACK"),
    )
    path = str(folder / EXPERIMENT)
    with _tune_environment(), _children_closed(tracker, run):
        if _has_snapshot(folder / EXPERIMENT):
            console.print("the search is taken up where it was interrupted", highlight=False)
            tuner = tune.Tuner.restore(path, trainable=trainable, resume_unfinished=True, restart_errored=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
            tuner = _tuner(settings, space, trainable, folder, tracker, run, incumbent)
        grid = tuner.fit()
    results = [grid[index] for index in range(len(grid))]
    for error in grid.errors:
        console.print(f"a trial failed: {_last_line(error)}", highlight=False, markup=False)
    found = [candidate for candidate in map(_best_epoch, results) if candidate is not None]
    if not found and grid.num_errors:
        raise DiversedError(
            f"all {grid.num_errors} trials failed: {_last_line(grid.errors[0])}; see {path}/*/error.txt"
        )
    outcome = select([*([incumbent] if incumbent else []), *found])
    write_json_atomic(folder / CANDIDATES, [candidate.record() for candidate in outcome.candidates])
    return outcome


def _has_snapshot(experiment: Path) -> bool:
    """Whether Tune can go on from there. (`can_restore` says yes as soon as the experiment is described. A driver that
    is killed before its first snapshot leaves no more than that, and Tune would go on without the trials.)"""
    return tune.Tuner.can_restore(str(experiment)) and any(experiment.glob("experiment_state-*.json"))


def _tuner(
    settings: Settings,
    space: Space,
    trainable: Callable[[dict[str, Any]], None],
    folder: Path,
    tracker: Tracker,
    run: TrackedRun,
    incumbent: Candidate | None,
) -> tune.Tuner:
    epochs = settings.train.epochs
    logged = [
        *CURVES,
        *(f"train_{name}" for name in (*ROLLOUT_CURVES, "expected_acceptance", "gradient_norm", "learning_rate")),
    ]
    callback = TrialCallback(
        tracker.uri, tracker.experiment_id, run.id, logged, epochs, {**tracker.tags(), RUN_KEY_TAG: f"{folder}:trial"}
    )
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=settings.search.trials,
            max_concurrent_trials=settings.search.concurrent,
            search_alg=_searcher(settings, space, incumbent),
            scheduler=ASHAScheduler(
                time_attr="epoch",
                max_t=epochs,
                grace_period=min(settings.search.grace_period, epochs),
                reduction_factor=settings.search.reduction_factor,
            ),
            reuse_actors=settings.pair.placement is Placement.IN_PROCESS,  # child actors belong to their trial
            trial_name_creator=trial_name,
            trial_dirname_creator=trial_dirname,
        ),
        run_config=tune.RunConfig(
            name=EXPERIMENT,
            storage_path=str(folder),
            callbacks=[callback, Progress(settings.search.trials, epochs)],
            verbose=0,
        ),
    )


def _searcher(settings: Settings, space: Space, incumbent: Candidate | None) -> OptunaSearch:
    """TPE, seeded. It begins at the space's first point, or is told the incumbent's score at the settings' own."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values = flatten(settings.record())
    own = {name: values[name] for name in space.domains}
    known = incumbent is not None and space.holds(own)
    return OptunaSearch(
        OptunaSearch.convert_search_space(dict(space.domains)),
        metric="score",
        mode="max",
        sampler=optuna.samplers.TPESampler(
            seed=settings.seed % 2**32, n_startup_trials=max(2, settings.search.trials // 2)
        ),
        points_to_evaluate=[own if known else space.first],
        evaluated_rewards=[incumbent.score] if incumbent is not None and known else None,
    )


def trial_name(trial: Trial) -> str:
    """`trial-3`, counted from 1: Tune's tag of a suggested trial begins with its number."""
    return f"trial-{trial.experiment_tag.partition('_')[0]}"


def trial_dirname(trial: Trial) -> str:
    """Short, and another one for a trial that is suggested again because a killed driver had not recorded it."""
    return f"{trial_name(trial)}-{trial.trial_id}"


class Progress(tune.Callback):
    """One screen line per report."""

    def __init__(self, trials: int, epochs: int) -> None:
        self.trials, self.epochs = trials, epochs

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        config = " ".join(f"{name.rpartition('.')[2]}={value:.3g}" for name, value in trial.config.items())
        candidate = Candidate(trial_name(trial), Path(), trial.config, int(result["epoch"]), result)
        print(
            f"{candidate.name}/{self.trials} [{config}] epoch {candidate.epoch}/{self.epochs}: {candidate.describe()}",
            flush=True,
        )


def run_trial(config: dict[str, Any], record: Mapping[str, Any], measure: Yardstick) -> None:
    """One trial: train under `config`; after each epoch score, and report with the epoch's checkpoint."""
    settings = from_record(record).updated(config)
    set_threads(settings.pair.threads)
    pair = _pair(settings.pair)
    with tempfile.TemporaryDirectory(prefix="trial-") as scratch:
        folder = Path(scratch) / "training"
        reached = tune.get_checkpoint()
        if reached is not None:
            with reached.as_directory() as saved:
                shutil.copytree(saved, folder)
        trainer = Trainer(settings, pair, get_task(settings.task.name), partial(engine_for, settings.pair, pair))
        for report in trainer.epochs(folder):
            _drop_older_epochs(folder)
            measured = assess(settings, pair, trainer.head, measure).report()
            of_training = {f"train_{name}": value for name, value in report.items()}
            tune.report(
                {**of_training, **measured, "epoch": int(report["epoch"])},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


@lru_cache(maxsize=1)
def _pair(settings: PairSettings) -> Pair:
    """Kept between the trials of one worker process."""
    return load_pair(settings)


def _drop_older_epochs(folder: Path) -> None:
    """A Tune checkpoint holds one epoch: the newest."""
    newest = latest_checkpoint(folder)
    for path in folder.iterdir():
        if path.is_dir() and path != newest:
            shutil.rmtree(path)


def _best_epoch(result: tune.Result) -> Candidate | None:
    """The trial's candidate: its best epoch's verifier. None if it reported nothing."""
    if not result.best_checkpoints:
        return None
    checkpoint, metrics = max(result.best_checkpoints, key=lambda reported: float(reported[1]["score"]))
    verifier = latest_checkpoint(Path(checkpoint.path))
    if verifier is None:
        raise DiversedError(f"{checkpoint.path} holds no epoch; remove the search's folder and search again")
    report = {name: metrics[name] for name in (*CURVES, "reason") if name in metrics}
    return Candidate(
        Path(result.path).name.rpartition("-")[0], verifier, dict(result.config or {}), int(metrics["epoch"]), report
    )


def _last_line(error: Exception) -> str:
    """What happened in a trial, without the traceback that Tune puts before it."""
    return str(error).strip().splitlines()[-1]


@contextmanager
def _tune_environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _children_closed(tracker: Tracker, run: TrackedRun) -> Iterator[None]:
    """No trial's run stays RUNNING when the search is interrupted; a resumed search opens them again."""
    try:
        yield
    except BaseException:
        tracker.close_stale(parent_run_id=run.id)
        raise
