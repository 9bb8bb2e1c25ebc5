"""Runs: opened, found again after a crash, and always closed."""

import getpass
import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diversed.artifacts import git_commit, provenance
from diversed.errors import TrackingError
from diversed.settings import Settings, flatten
from diversed.tracking.registry import Registry
from diversed.tracking.store import errors_of, experiment_id, open_client

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["PARENT_TAG", "RUN_KEY_TAG", "TrackedRun", "Tracker", "param_value"]

logger = logging.getLogger(__name__)

RUN_KEY_TAG = "diversed.run_key"
PARENT_TAG = "mlflow.parentRunId"
TABLES_TAG = "mlflow.loggedArtifacts"  # how `load_table` and the UI know a table
PARAM_LENGTH = 500  # what every MLflow server of the last years takes; newer ones take 6000
BATCH = 100  # params per call, MLflow's bound


class TrackedRun:
    """An open MLflow run. Every method writes at once; TrackingError if the store does not take it."""

    def __init__(self, client: "MlflowClient", uri: str, run_id: str) -> None:
        self.id = run_id
        self._client = client
        self._uri = uri

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """All values at one `step`, in one call."""
        with errors_of(self._uri):
            self._client.log_batch(self.id, metrics=metric_entities(metrics, step))

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Nested names become dotted, long values are cut.

        Params of a run cannot change: for a resumed run a value that differs from the first attempt's is kept as tag
        `diversed.changed.<name>`.
        """
        from mlflow.entities import Param

        wanted = {name: param_value(value) for name, value in flatten(params).items()}
        with errors_of(self._uri):
            present = self._client.get_run(self.id).data.params
            new = [Param(name, value) for name, value in wanted.items() if name not in present]
            for start in range(0, len(new), BATCH):
                self._client.log_batch(self.id, params=new[start : start + BATCH])
        changed = [name for name, value in wanted.items() if present.get(name, value) != value]
        if changed:
            logger.warning("run %s is resumed with other values of %s", self.id, ", ".join(changed))
            self.set_tags({f"diversed.changed.{name}": wanted[name] for name in changed})

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """`rows` as the table artifact `name` (.json); a table of that name is replaced (MLflow's own call appends)."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        data = [[_json_value(row.get(column)) for column in columns] for row in rows]
        with errors_of(self._uri):
            self._client.log_dict(self.id, {"columns": columns, "data": data}, name)
            known = json.loads(self._client.get_run(self.id).data.tags.get(TABLES_TAG, "[]"))
            entry = {"path": name, "type": "table"}
            if entry not in known:
                self._client.set_tag(self.id, TABLES_TAG, json.dumps([*known, entry]))

    def log_figure(self, figure: "Figure", name: str) -> None:
        """A matplotlib figure as the artifact `name`, e.g. `pareto.png`."""
        with errors_of(self._uri):
            self._client.log_figure(self.id, figure, name)

    def log_artifacts(self, folder: Path, path: str | None = None) -> None:
        """The files of `folder` below `path` of the run's artifacts."""
        if not folder.is_dir():
            raise TrackingError(f"artifacts folder {str(folder)!r} does not exist; give an existing folder")
        with errors_of(self._uri):
            self._client.log_artifacts(self.id, str(folder), path)

    def log_artifact(self, file: Path, path: str | None = None) -> None:
        """`file` below `path` of the run's artifacts."""
        with errors_of(self._uri):
            self._client.log_artifact(self.id, str(file), path)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        with errors_of(self._uri):
            for name, value in tags.items():
                self._client.set_tag(self.id, name, value)


class Tracker:
    """The experiment of `settings` in the store of `settings`.

    Make one in the driver before any trial or replica opens the store: it creates a missing sqlite file and the
    experiment. TrackingError within seconds if the store cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.uri = settings.tracking_uri
        self.client = open_client(self.uri)
        self.experiment_id = experiment_id(self.client, settings)
        self.registry = Registry(self.uri, self.client)

    @contextmanager
    def run(
        self,
        name: str,
        key: str | None = None,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Iterator[TrackedRun]:
        """An open run, ended as FINISHED, on an exception FAILED, on an interrupt or exit KILLED.

        `key` identifies the work across attempts: the run of that key is opened again if there is one, so that a
        resumed job does not leave the dead attempt RUNNING. Settings become params, `tags` add to the standard ones.
        """
        all_tags = self.tags() | dict(tags or {})
        if key is not None:
            all_tags[RUN_KEY_TAG] = key
        if parent_run_id is not None:
            all_tags[PARENT_TAG] = parent_run_id
        run = self._open(name, key, all_tags)
        try:
            run.log_params(self.settings.record())
            yield run
        except Exception:
            self._end_quietly(run, "FAILED")
            raise
        except BaseException:
            self._end_quietly(run, "KILLED")
            raise
        with errors_of(self.uri):
            self.client.set_terminated(run.id, "FINISHED")

    def tags(self) -> dict[str, str]:
        """What every run of these settings carries."""
        settings = self.settings
        tags = {
            "method": settings.decode.method.value,
            "task": settings.task.name,
            "pair": settings.pair.name,
            "target": settings.pair.target or settings.pair.name,
            "draft": settings.pair.draft or settings.pair.name,
            "seed": str(settings.seed),
            "mlflow.user": getpass.getuser(),
            "mlflow.source.name": sys.argv[0],
            "mlflow.source.type": "LOCAL",
        }
        record = provenance()
        if (commit := git_commit()) is not None:
            tags["mlflow.source.git.commit"] = commit
        if record["git_dirty"] is not None:
            tags["mlflow.source.git.dirty"] = str(record["git_dirty"])
        ray = sys.modules.get("ray")  # not imported for a tag's sake
        if ray is not None and ray.is_initialized():
            tags["ray.job_id"] = ray.get_runtime_context().get_job_id()
        return tags

    def close_stale(self, key_prefix: str | None = None, parent_run_id: str | None = None) -> int:
        """End what a dead attempt left RUNNING as KILLED: runs whose key starts with `key_prefix`, children of
        `parent_run_id`. How many there were. Call it only when no other process is at the same work."""
        if key_prefix is None and parent_run_id is None:
            raise ValueError("close_stale needs key_prefix or parent_run_id")
        closed = 0
        with errors_of(self.uri):
            for run in search_all(self.client, self.experiment_id, "attributes.status = 'RUNNING'"):
                key, parent = run.data.tags.get(RUN_KEY_TAG), run.data.tags.get(PARENT_TAG)
                of_key = key is not None and key_prefix is not None and key.startswith(key_prefix)
                if of_key or (parent is not None and parent == parent_run_id):
                    self.client.set_terminated(run.info.run_id, "KILLED")
                    closed += 1
        return closed

    def _open(self, name: str, key: str | None, tags: Mapping[str, str]) -> TrackedRun:
        with errors_of(self.uri):
            same = None if key is None else f"tags.`{RUN_KEY_TAG}` = {_literal(key)}"
            found = [] if same is None else search_all(self.client, self.experiment_id, same)
            if not found:
                created = self.client.create_run(self.experiment_id, run_name=name, tags=dict(tags))
                return TrackedRun(self.client, self.uri, created.info.run_id)
            run = TrackedRun(self.client, self.uri, found[0].info.run_id)
            self.client.update_run(run.id, status="RUNNING")
        run.set_tags(tags)
        return run

    def _end_quietly(self, run: TrackedRun, status: str) -> None:
        """End `run` while an exception is on its way; a store that is down must not hide that exception."""
        try:
            with errors_of(self.uri):
                self.client.set_terminated(run.id, status)
        except TrackingError as error:
            logger.warning("run %s could not be marked %s: %s", run.id, status, error)


def param_value(value: Any) -> str:
    """`value` as a param: text, cut to what every server takes."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= PARAM_LENGTH else f"{text[: PARAM_LENGTH - 3]}..."


def metric_entities(metrics: Mapping[str, float], step: int) -> list[Any]:
    """MLflow's own records of `metrics` at `step`."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(name, float(value), now, step) for name, value in metrics.items()]


def search_all(client: "MlflowClient", experiment: str, condition: str) -> "list[Run]":
    """All active runs that match, newest first."""
    runs: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs([experiment], filter_string=condition, max_results=500, page_token=token)
        runs.extend(page)
        token = page.token
        if not token:
            return runs


def _literal(text: str) -> str:
    """`text` for a filter of MLflow's, whose grammar has two kinds of quotes and no escape."""
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return f'"{text}"'
    raise TrackingError(f"run key {text!r} has both kinds of quotes; give a path or name without them")


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
