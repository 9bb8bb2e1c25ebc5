"""MLflow runs of a Tune search: one child per trial, found again after `Tuner.restore`, always closed.

Ray's stock callback makes second runs after a restore, and logs noise with two calls per metric.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from diversed.settings import flatten
from diversed.tracking.runs import PARENT_TAG, metric_entities, param_value, search_all
from diversed.tracking.store import errors_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["TrialCallback"]

TRIAL_TAG = "trial_id"
EARLY_TAG = "tune.early_stopped"
STEP = "training_iteration"


class TrialCallback(Callback):
    """Logs each trial as a child of `parent_run_id`.

    `metrics` names the reported values that are logged, at step `training_iteration`; `max_steps` is how many reports
    a trial makes when nobody stops it. The store must exist (`Tracker`). Tune pickles callbacks, so the open client
    and what is known of runs stay out of the pickle.
    """

    def __init__(
        self,
        uri: str,
        experiment_id: str,
        parent_run_id: str,
        metrics: Sequence[str],
        max_steps: int,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.uri = uri
        self.experiment_id = experiment_id
        self.parent_run_id = parent_run_id
        self.metrics = tuple(metrics)
        self.max_steps = max_steps
        self.tags = dict(tags or {})
        self._forget()

    def _forget(self) -> None:
        self._client: MlflowClient | None = None
        self._runs: dict[str, str] = {}  # trial id -> run id
        self._steps: dict[str, int] = {}  # run id -> last step logged

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def client(self) -> "MlflowClient":
        if self._client is None:
            import mlflow

            self._client = mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        return self._client

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        with errors_of(self.uri):
            self._run(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        with errors_of(self.uri):
            run_id, step = self._run(trial), int(result[STEP])
            values = {name: result[name] for name in self.metrics if name in result}
            if step > self._steps[run_id]:  # a restored trial repeats what came after its last checkpoint
                self.client.log_batch(run_id, metrics=metric_entities(values, step))
                self._steps[run_id] = step

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        with errors_of(self.uri):
            self._finish(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        with errors_of(self.uri):
            self._end(trial, "FAILED")

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Closes what is left: trials cut off by an interrupt, or whose end a killed driver did not record."""
        by_id = {trial.trial_id: trial for trial in trials}
        running = f"attributes.status = 'RUNNING' and tags.`{PARENT_TAG}` = '{self.parent_run_id}'"
        with errors_of(self.uri):
            for run in search_all(self.client, self.experiment_id, running):
                trial = by_id.get(run.data.tags.get(TRIAL_TAG, ""))
                if trial is not None and (trial.last_result or {}).get("done"):
                    self._finish(trial)
                elif trial is not None:
                    self._end(trial, "FAILED" if trial.status == Trial.ERROR else "KILLED")
                elif TRIAL_TAG in run.data.tags:  # younger than the snapshot that Tune resumed from
                    self.client.set_terminated(run.info.run_id, "KILLED")

    def _finish(self, trial: Trial) -> None:
        early = int((trial.last_result or {}).get(STEP, 0)) < self.max_steps
        self.client.set_tag(self._run(trial), EARLY_TAG, str(early).lower())
        self._end(trial, "FINISHED")

    def _end(self, trial: Trial, status: str) -> None:
        self.client.set_terminated(self._run(trial), status)

    def _find(self, trial_id: str) -> str | None:
        """The run of a trial, from an earlier attempt if need be."""
        if trial_id not in self._runs:
            condition = f"tags.`{PARENT_TAG}` = '{self.parent_run_id}' and tags.{TRIAL_TAG} = '{trial_id}'"
            found = search_all(self.client, self.experiment_id, condition)
            if not found:
                return None
            run_id = found[0].info.run_id
            logged = [m.step for name in found[0].data.metrics for m in self.client.get_metric_history(run_id, name)]
            self._runs[trial_id], self._steps[run_id] = run_id, max(logged, default=0)
        return self._runs[trial_id]

    def _run(self, trial: Trial) -> str:
        """The trial's run, opened again or made."""
        known = trial.trial_id in self._runs
        run_id = self._find(trial.trial_id)
        if run_id is not None:
            if not known:
                self.client.update_run(run_id, status="RUNNING")
            return run_id
        from mlflow.entities import Param

        tags = {**self.tags, PARENT_TAG: self.parent_run_id, TRIAL_TAG: trial.trial_id}
        run_id = str(self.client.create_run(self.experiment_id, run_name=str(trial), tags=tags).info.run_id)
        params = [Param(name, param_value(value)) for name, value in flatten(trial.config or {}).items()]
        self.client.log_batch(run_id, params=params)
        self._runs[trial.trial_id], self._steps[run_id] = run_id, 0
        return run_id
