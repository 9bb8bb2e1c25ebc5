"""One sqlite store for all tracking tests (a new one costs seconds of migrations); each test has its own experiment."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diversed.settings import Settings
from diversed.tracking import Tracker


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with a migrated `mlflow.db`."""
    output = tmp_path_factory.mktemp("output")
    Tracker(Settings(output=output))
    return output


@pytest.fixture
def settings(store: Path, request: pytest.FixtureRequest) -> Settings:
    return Settings(output=store, seed=7, tracking={"experiment": f"tests/{request.node.name}"})


@pytest.fixture
def tracker(settings: Settings) -> Tracker:
    return Tracker(settings)


@pytest.fixture
def ray_temp() -> Iterator[Path]:
    """A folder for Rays of a test's own; their unix sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="dvk", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
