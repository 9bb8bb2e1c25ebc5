"""Fixtures for all tests: the shared data folder, and one small Ray of the session's own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Examples are fixed, so a red test is red everywhere; machines are shared, so no example has a deadline.
hypothesis.settings.register_profile("shared-machine", deadline=None, derandomize=True)
hypothesis.settings.load_profile("shared-machine")

# Before anything imports these libraries: no hub, no telemetry, and the one authentication mode for loopback clusters
# (Ray's default differs between commands). A Ray address of the developer's own must not be joined by accident.
os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",  # two spinning threads per process would stall each other
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
)
for _name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
    os.environ.pop(_name, None)
for _name in [name for name in os.environ if name.startswith("DIVERSED_")]:
    del os.environ[_name]

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of benchmark extracts, reference tables and cases beside the checkout (or at SHARED_FOLDER)."""
    folder = Path(os.environ.get("SHARED_FOLDER", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared data at {folder}: set SHARED_FOLDER to a folder with data/gsm8k.jsonl and so on")
    return folder


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray of 2 CPUs that belongs to this test session; its workers import the checkout."""
    import ray

    folder = tempfile.mkdtemp(prefix="dvt", dir="/tmp")
    environment = {"PYTHONPATH": f"{REPOSITORY / 'platform'}:{REPOSITORY}", "HF_HUB_OFFLINE": "1"}
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _temp_dir=folder,
        log_to_driver=False,
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
