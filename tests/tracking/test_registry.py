"""Registered verifiers: versions, aliases, downloads, and no second version on resume."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diversed.errors import TrackingError
from diversed.settings import Settings
from diversed.tracking import Registry, Tracker


@pytest.fixture
def verifier(tmp_path: Path) -> Path:
    folder = tmp_path / "verifier"
    folder.mkdir()
    (folder / "verifier.safetensors").write_bytes(b"\0" * 32)
    (folder / "config.json").write_text("{}")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_register_alias_download(tracker: Tracker, verifier: Path) -> None:
    registry = tracker.registry
    with tracker.run("search") as run:
        version = registry.register("diversed-a", verifier, run.id, tags={"lambda": "0.1"}, description="a winner")
    assert version == 1
    assert registry.alias_version("diversed-a", "champion") is None
    registry.set_alias("diversed-a", "champion", version)
    champion = registry.alias_version("diversed-a", "champion")
    assert champion is not None
    assert (champion.name, champion.version, champion.run_id, champion.uri) == (
        "diversed-a",
        1,
        run.id,
        "models:/diversed-a/1",
    )
    assert champion.tags["lambda"] == "0.1"
    assert champion.description == "a winner"
    assert registry.resolve("models:/diversed-a/1") == champion
    for uri in ("models:/diversed-a@champion", "models:/diversed-a/1"):
        with registry.files(uri) as folder:
            assert files(folder) == files(verifier)
        assert not folder.exists()
    artifacts = tracker.client.list_artifacts(run.id)
    assert [artifact.path for artifact in artifacts] == ["verifier"]


def test_same_files_of_the_same_run_are_one_version(tracker: Tracker, settings: Settings, verifier: Path) -> None:
    with tracker.run("search", key="s") as run:
        first = tracker.registry.register("diversed-b", verifier, run.id)
    resumed = Registry.of(settings)
    assert resumed.register("diversed-b", verifier, run.id) == first == 1
    with tracker.run("other") as other:
        assert resumed.register("diversed-b", verifier, other.id) == 2


def test_other_files_of_the_same_run_leave_the_old_version_as_it_was(tracker: Tracker, verifier: Path) -> None:
    old = files(verifier)
    with tracker.run("search") as run:
        tracker.registry.register("diversed-c", verifier, run.id)
        (verifier / "verifier.safetensors").write_bytes(b"\1" * 32)
        assert tracker.registry.register("diversed-c", verifier, run.id) == 2
    with (
        tracker.registry.files("models:/diversed-c/1") as first,
        tracker.registry.files("models:/diversed-c/2") as second,
    ):
        assert files(first) == old
        assert files(second) == files(verifier)


def test_plain_mlflow_loads_the_champion(tracker: Tracker, settings: Settings, verifier: Path, tmp_path: Path) -> None:
    with tracker.run("search") as run:
        tracker.registry.set_alias("diversed-d", "champion", tracker.registry.register("diversed-d", verifier, run.id))
    program = "import mlflow; print(mlflow.artifacts.download_artifacts('models:/diversed-d@champion'))"
    environment = os.environ | {"MLFLOW_TRACKING_URI": settings.tracking_uri}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert files(Path(done.stdout.strip())) == files(verifier)


@pytest.mark.parametrize("uri", ["models:/nobody@champion", "models:/nobody/3", "models:/nobody/99"])
def test_missing_model_says_how_to_make_one(tracker: Tracker, uri: str) -> None:
    with (
        pytest.raises(TrackingError, match=rf"{uri}.*not in the registry.*jobs\.pipeline"),
        tracker.registry.files(uri),
    ):
        pass
    assert tracker.registry.alias_version("nobody", "champion") is None


@pytest.mark.parametrize("uri", ["models:/a", "models:/a/Production", "runs:/1/verifier", "a@champion"])
def test_uri_that_is_not_a_version(tracker: Tracker, uri: str) -> None:
    with pytest.raises(TrackingError, match="models:/NAME@ALIAS or models:/NAME/VERSION"), tracker.registry.files(uri):
        pass


def test_alias_of_a_missing_version(tracker: Tracker) -> None:
    with pytest.raises(TrackingError, match="give an existing version"):
        tracker.registry.set_alias("diversed-e", "champion", 4)


def test_empty_folder_is_not_registered(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.run("search") as run, pytest.raises(TrackingError, match="does not exist or is empty"):
        tracker.registry.register("diversed-f", tmp_path / "missing", run.id)


def test_lost_and_changed_files_are_refused(tracker: Tracker, settings: Settings, verifier: Path) -> None:
    with tracker.run("search") as run:
        tracker.registry.register("diversed-g", verifier, run.id)
    (folder,) = (settings.output / "mlflow-artifacts").glob(f"{settings.experiment}/{run.id}/artifacts/verifier/*")
    (folder / "config.json").write_text('{"changed": true}')
    with (
        pytest.raises(TrackingError, match="files of models:/diversed-g/1 are lost or changed"),
        tracker.registry.files("models:/diversed-g/1"),
    ):
        pass
    shutil.rmtree(folder)
    with (
        pytest.raises(TrackingError, match="files of models:/diversed-g/1 are lost or changed"),
        tracker.registry.files("models:/diversed-g/1"),
    ):
        pass
