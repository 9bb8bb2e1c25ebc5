"""Opening an MLflow store: quickly, once, or with one line that says why not.

MLflow itself retries a store that cannot be reached for minutes, makes a new sqlite file in a way that two processes
must not do at once, and puts artifacts into the working directory of whoever made the experiment.
"""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diversed.errors import TrackingError
from diversed.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["errors_of", "experiment_id", "open_client", "shown"]

PROBE_SECONDS = 5.0
HTTP = ("http", "https")
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
EXAMPLES = "give http(s)://HOST:PORT of an MLflow server or sqlite:////ABSOLUTE/PATH/mlflow.db"


def open_client(uri: str) -> "MlflowClient":
    """A client of the store and registry at `uri`, known to answer; a missing sqlite file is made.

    TrackingError within seconds otherwise.
    """
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme == "sqlite":
        return _open_sqlite(uri)
    if scheme in HTTP:
        with _no_retries():
            return _probed(uri, f"start the server there, or {EXAMPLES}")
    if scheme in DATABASE_PORTS:
        _reach(uri, parts.hostname or "localhost", parts.port or DATABASE_PORTS[scheme])
        return _probed(uri, "check the database's name, user and password")
    if "://" not in uri or scheme == "file":
        raise _refusal(uri, f"not a server or database (MLflow has retired its file stores); {EXAMPLES}")
    raise _refusal(uri, f"unknown scheme {parts.scheme!r}; {EXAMPLES}")


def experiment_id(client: "MlflowClient", settings: Settings) -> str:
    """The id of `settings.experiment`, made if there is none.

    Without a tracking server its artifacts go below `settings.output`. TrackingError for a deleted experiment.
    """
    name, uri = settings.experiment, settings.tracking_uri
    location = None if urlsplit(uri).scheme in HTTP else (settings.output / "mlflow-artifacts" / name).as_uri()
    with errors_of(uri):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            from mlflow.exceptions import MlflowException

            try:
                return str(client.create_experiment(name, artifact_location=location))
            except MlflowException:  # another process may have made it in between
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment = {name!r} is deleted in {shown(uri)}; give another name, or restore it: "
            f"MLFLOW_TRACKING_URI={shown(uri)} mlflow experiments restore --experiment-id {experiment.experiment_id}"
        )
    return str(experiment.experiment_id)


@contextmanager
def errors_of(uri: str, fix: str = "check that the store is up and can be written") -> Iterator[None]:
    """Whatever MLflow, its database or its HTTP client raise inside becomes one TrackingError that names the store."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        raise _refusal(uri, f"{_reason(error)}; {fix}") from error


def _reason(error: BaseException) -> str:
    """What the operating system said, if it said something; else the library's message, cut."""
    first: BaseException | None = error
    while first is not None:
        if isinstance(first, OSError) and first.strerror:
            return first.strerror
        if isinstance(first, TimeoutError):
            return "timed out"
        first = first.__cause__ or first.__context__
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}..."


def _refusal(uri: str, reason: str) -> TrackingError:
    return TrackingError(f"tracking.uri = {shown(uri)!r}: {reason}")


def shown(uri: str) -> str:
    """`uri` without its password."""
    password = urlsplit(uri).password
    return uri.replace(f":{password}@", ":***@") if password else uri


def _open_sqlite(uri: str) -> "MlflowClient":
    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or not path.is_absolute():
        raise _refusal(
            uri, "not an absolute path, and workers run in other directories; give sqlite:////ABSOLUTE/PATH/mlflow.db"
        )
    if path.is_dir():
        raise _refusal(uri, f"{path} is a folder; give a file in it, e.g. sqlite:///{path}/mlflow.db")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("r+b") as file:
                header = file.read(16)
            if header and header != b"SQLite format 3\0":
                raise _refusal(uri, f"{path} is not an sqlite file; give another path")
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _refusal(uri, f"{error.strerror}: {error.filename}; give a path that can be written") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two processes making one new database ruin each other's migrations
        return _probed(uri, "give another path, or `mlflow db upgrade` a store of an older MLflow")
    finally:
        os.close(folder)


def _probed(uri: str, fix: str) -> "MlflowClient":
    """A client whose store has answered one question."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    import mlflow

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.ERROR)  # it prints each retry with an SQL trace
    with errors_of(uri, fix):
        client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


@contextmanager
def _no_retries() -> Iterator[None]:
    """MLflow's HTTP client asks once and waits seconds; its default is 7 retries of 120 s each."""
    changes = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(PROBE_SECONDS))}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _reach(uri: str, host: str, port: int) -> None:
    """SQLAlchemy's start is retried ten times by MLflow; a closed port is known at once."""
    try:
        socket.create_connection((host, port), PROBE_SECONDS).close()
    except OSError as error:
        raise _refusal(uri, f"{host}:{port} does not answer ({error}); start the database or {EXAMPLES}") from error
