"""Stores that cannot be used are refused in one line, quickly; a new sqlite store is made once."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from diversed.errors import TrackingError
from diversed.settings import Settings
from diversed.tracking import Registry, Tracker
from diversed.tracking.store import open_client


def refusal(uri: str) -> str:
    with pytest.raises(TrackingError) as caught:
        open_client(uri)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith("tracking.uri = ")
    assert "\n" not in message
    assert len(message) < 600
    return message


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.timeout(60)  # MLflow alone retries for four minutes
def test_unreachable_server(closed_port: int) -> None:
    message = refusal(f"http://127.0.0.1:{closed_port}")
    assert f"127.0.0.1:{closed_port}" in message
    assert "Connection refused" in message
    assert "start the server" in message


@pytest.mark.timeout(60)
def test_server_that_accepts_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = refusal(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "timed out" in message


class NotMlflow(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"nothing here")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.timeout(60)
def test_server_that_is_not_mlflow() -> None:
    server = HTTPServer(("127.0.0.1", 0), NotMlflow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert "404" in refusal(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.timeout(60)  # MLflow tries a database ten times
def test_unreachable_database_hides_the_password(closed_port: int) -> None:
    message = refusal(f"postgresql://me:secret@127.0.0.1:{closed_port}/mlflow")
    assert "does not answer" in message
    assert "secret" not in message


@pytest.mark.parametrize("uri", ["foo://bar", "mlruns", "file:///tmp/mlruns", "databricks"])
def test_unknown_kind_of_store(uri: str) -> None:
    assert "sqlite:////ABSOLUTE" in refusal(uri)


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "sqlite://", "sqlite:///:memory:"])
def test_sqlite_needs_an_absolute_path(uri: str) -> None:
    assert "not an absolute path" in refusal(uri)


@pytest.mark.timeout(60)
def test_sqlite_paths_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database, this file")
    assert "is a folder" in refusal(f"sqlite:///{tmp_path}")
    assert "not an sqlite file" in refusal(f"sqlite:///{tmp_path}/notes.txt")
    assert "give a path that can be written" in refusal(f"sqlite:///{tmp_path}/notes.txt/mlflow.db")
    assert (tmp_path / "notes.txt").read_text() == "no database, this file"


@pytest.mark.timeout(60)
def test_damaged_sqlite_file(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    assert "give another path" in refusal(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.timeout(200)
def test_a_new_store_opened_twice_at_once_is_made_once(tmp_path: Path) -> None:
    settings = Settings(output=tmp_path / "new" / "output")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(Tracker, [settings, settings])
    assert first.experiment_id == second.experiment_id


def test_experiment_keeps_artifacts_below_output(tracker: Tracker, settings: Settings) -> None:
    experiment = tracker.client.get_experiment(tracker.experiment_id)
    assert experiment.name == settings.experiment
    assert experiment.artifact_location == (settings.output / "mlflow-artifacts" / settings.experiment).as_uri()
    assert Tracker(settings).experiment_id == tracker.experiment_id


def test_deleted_experiment_is_named_with_its_restore_command(tracker: Tracker, settings: Settings) -> None:
    tracker.client.delete_experiment(tracker.experiment_id)
    with pytest.raises(TrackingError, match=rf"is deleted.*restore --experiment-id {tracker.experiment_id}"):
        Tracker(settings)
    tracker.client.restore_experiment(tracker.experiment_id)
    assert Tracker(settings).experiment_id == tracker.experiment_id


def test_registry_alone_makes_no_experiment(store: Path) -> None:
    settings = Settings(output=store, tracking={"experiment": "tests/never-made"})
    Registry.of(settings)
    assert open_client(settings.tracking_uri).get_experiment_by_name("tests/never-made") is None
