"""A real Tune search: one nested, closed run per trial, also after the driver was killed and the search restored."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.entities import Run

from diversed.settings import Settings
from diversed.tracking import Tracker
from diversed.tracking.runs import search_all
from diversed.tracking.trials import TrialCallback

EPOCHS = 3


def children(tracker: Tracker, parent_run_id: str) -> list[Run]:
    return search_all(tracker.client, tracker.experiment_id, f"tags.`mlflow.parentRunId` = '{parent_run_id}'")


def steps(tracker: Tracker, run: Run) -> list[int]:
    return [metric.step for metric in tracker.client.get_metric_history(run.info.run_id, "score")]


def callback(tracker: Tracker, parent_run_id: str) -> TrialCallback:
    return TrialCallback(
        tracker.uri, tracker.experiment_id, parent_run_id, ["score"], EPOCHS, tags={"task": "arithmetic"}
    )


def test_pickle_keeps_settings_and_drops_the_client(tracker: Tracker) -> None:
    original = callback(tracker, "p")
    assert original.client.search_experiments(max_results=1)
    copy = pickle.loads(pickle.dumps(original))  # noqa: S301 - what Tune does
    assert copy._client is None
    assert (copy.uri, copy.parent_run_id, copy.metrics, copy.max_steps) == (tracker.uri, "p", ("score",), EPOCHS)


def test_experiment_end_closes_what_is_left(tracker: Tracker) -> None:
    """Cut off by an interrupt; ended or failed before the driver could say so; unknown to the snapshot."""

    def trial(name: str, status: str, done: bool) -> Any:
        return SimpleNamespace(
            trial_id=name, status=status, config={}, last_result={"training_iteration": 1, "done": done}
        )

    trials = [trial("cut", "TERMINATED", False), trial("ended", "TERMINATED", True), trial("failed", "ERROR", False)]
    with tracker.run("search") as parent:
        first = callback(tracker, parent.id)
        for each in [*trials, trial("young", "RUNNING", False)]:
            first.on_trial_start(0, [], each)
        with tracker.run("other child", parent_run_id=parent.id) as other:
            callback(tracker, parent.id).on_experiment_end(trials)
            statuses = {run.data.tags.get("trial_id"): run.info.status for run in children(tracker, parent.id)}
    assert statuses == {"cut": "KILLED", "ended": "FINISHED", "failed": "FAILED", "young": "KILLED", None: "RUNNING"}
    assert tracker.client.get_run(other.id).info.status == "FINISHED"


@pytest.mark.usefixtures("ray_session")
def test_search_leaves_one_closed_child_per_trial(tracker: Tracker, tmp_path: Path) -> None:
    """Three trials: one runs to its end, one is stopped early by the scheduler's stand-in, one raises."""
    from ray import tune

    def trial(config: dict[str, str]) -> None:
        for epoch in range(EPOCHS):
            if config["kind"] == "raises" and epoch == 1:
                raise RuntimeError("no luck")
            tune.report({"score": float(epoch), "noise": 1.0, "early": config["kind"] == "early" and epoch == 1})

    with tracker.run("search") as parent:
        results = tune.Tuner(
            tune.with_resources(trial, {"cpu": 1}),
            param_space={"kind": tune.grid_search(["full", "early", "raises"]), "nested": {"lambda": 0.5}},
            tune_config=tune.TuneConfig(max_concurrent_trials=2),
            run_config=tune.RunConfig(
                storage_path=str(tmp_path),
                callbacks=[callback(tracker, parent.id)],
                stop=lambda _, result: result["early"],
                verbose=0,
            ),
        ).fit()
    assert results.num_errors == 1
    runs = {run.data.params["kind"]: run for run in children(tracker, parent.id)}
    assert len(children(tracker, parent.id)) == 3
    assert {kind: run.info.status for kind, run in runs.items()} == {
        "full": "FINISHED",
        "early": "FINISHED",
        "raises": "FAILED",
    }
    assert {kind: run.data.tags.get("tune.early_stopped") for kind, run in runs.items()} == {
        "full": "false",
        "early": "true",
        "raises": None,
    }
    assert {kind: steps(tracker, run) for kind, run in runs.items()} == {
        "full": [1, 2, 3],
        "early": [1, 2],
        "raises": [1],
    }
    assert all(set(run.data.metrics) == {"score"} for run in runs.values())
    assert all(run.data.params["nested.lambda"] == "0.5" for run in runs.values())
    assert all(run.data.tags["task"] == "arithmetic" for run in runs.values())


DRIVER = """
import json, os, pathlib, sys, tempfile, time
import ray
from ray import tune
from diversed.settings import Settings
from diversed.tracking import Tracker
from diversed.tracking.trials import TrialCallback

output, experiment, storage = sys.argv[1:4]

def trial(config):
    restored, start = tune.get_checkpoint(), 0
    if restored:
        with restored.as_directory() as folder:
            start = json.loads((pathlib.Path(folder) / "epoch.json").read_text())
    for epoch in range(start, 3):
        while config["index"] > 1 and epoch == 2 and not (pathlib.Path(config["storage"]) / "go").exists():
            time.sleep(0.2)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "epoch.json").write_text(json.dumps(epoch + 1))
            tune.report({"score": float(epoch)}, checkpoint=tune.Checkpoint.from_directory(folder))

settings = Settings(output=output, tracking={"experiment": experiment})
tracker = Tracker(settings)
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[4])
path = str(pathlib.Path(storage) / "search")
trainable = tune.with_resources(trial, {"cpu": 1})
with tracker.run("search", key="search/1") as parent:
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=trainable, resume_unfinished=True, restart_errored=True)
    else:
        callback = TrialCallback(tracker.uri, tracker.experiment_id, parent.id, ["score"], 3)
        tuner = tune.Tuner(
            trainable,
            param_space={"index": tune.grid_search([0, 1, 2, 3]), "storage": storage},
            run_config=tune.RunConfig(name="search", storage_path=storage, callbacks=[callback], verbose=0),
        )
    results = tuner.fit()
    print(json.dumps({"parent": parent.id, "errors": results.num_errors, "trials": len(results)}), flush=True)
ray.shutdown()
"""


@pytest.mark.slow  # two Rays of its own
@pytest.mark.timeout(600)
def test_killed_driver_and_restore_make_no_second_run(
    tracker: Tracker, settings: Settings, tmp_path: Path, ray_temp: Path, repository: Path
) -> None:
    """kill -9 while two trials wait in their last epoch; the same program again finishes them in the same runs."""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'platform'}:{repository}"}

    def command(number: int) -> list[str]:
        arguments = [str(settings.output), settings.experiment, str(tmp_path), str(ray_temp / str(number))]
        return [sys.executable, "-c", DRIVER, *arguments]

    first = subprocess.Popen(command(1), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 240
        while True:
            runs = search_all(tracker.client, tracker.experiment_id, "tags.trial_id LIKE '%'")
            if sorted((run.info.status, steps(tracker, run)[-1:]) for run in runs) == [
                ("FINISHED", [3]),
                ("FINISHED", [3]),
                ("RUNNING", [2]),
                ("RUNNING", [2]),
            ]:
                break
            assert first.poll() is None, first.communicate()[0].decode()
            assert time.monotonic() < deadline, (
                f"not there yet: {[(run.info.status, steps(tracker, run)) for run in runs]}"
            )
            time.sleep(1)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.communicate()
    before = {run.info.run_id: run.info.end_time for run in runs if run.info.status == "FINISHED"}

    (tmp_path / "go").touch()
    second = subprocess.run(command(2), env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 0, second.stderr
    report = json.loads(second.stdout.strip().splitlines()[-1])
    assert (report["errors"], report["trials"]) == (0, 4)
    after = search_all(tracker.client, tracker.experiment_id, "")
    assert len(after) == 5  # parent and four trials
    assert {run.info.status for run in after} == {"FINISHED"}
    trials = children(tracker, report["parent"])
    assert len(trials) == 4
    assert [steps(tracker, run) for run in trials] == [[1, 2, 3]] * 4
    # Finished trials are kept as they were.
    assert {run.info.run_id: run.info.end_time for run in trials if run.info.run_id in before} == before
