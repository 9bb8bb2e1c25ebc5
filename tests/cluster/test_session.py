"""Connections: to a Ray of one's own, to the one that RAY_ADDRESS names, to the one that is already there."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from diversed.cluster import connect, free_port, nodes
from diversed.errors import ClusterError


@pytest.mark.usefixtures("ray_session")
def test_a_connection_that_is_there_is_used_and_left_alone() -> None:
    import ray

    with connect() as session:
        assert not session.local
        assert session.dashboard_url is None
        assert nodes()[0]["CPU"] == 2.0
    assert ray.is_initialized()


def test_local_cluster_is_new_private_and_imports_the_packages(repository: Path, tmp_path: Path) -> None:
    """From another directory and HOME: joins nothing, leaves nothing. Then RAY_ADDRESS names what has ended."""
    program = textwrap.dedent(
        """
        import os
        import signal
        from diversed.cluster import connect, nodes
        from diversed.errors import ClusterError
        import ray

        @ray.remote
        def imported():
            import diversed, jobs, tune_spaces, serve_apps
            return diversed.__file__

        stops = []
        signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
        with connect() as session:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stops == [signal.SIGTERM]  # the caller's handler, not Ray's, which prints a trace and aborts
            assert session.local and session.dashboard_url is None
            address = ray.get_runtime_context().gcs_address
            assert address.startswith("127.0.0."), address
            assert os.environ["RAY_AUTH_MODE"] == "disabled"
            print(ray.get(imported.remote(), timeout=200))
        assert not ray.is_initialized()
        os.environ["RAY_ADDRESS"] = address
        try:
            with connect():
                raise AssertionError("that cluster has ended")
        except ClusterError as error:
            assert "RAY_ADDRESS" in str(error) and "does not answer" in str(error), error
        """
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": f"{repository / 'platform'}:{repository}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(repository / "platform" / "diversed" / "__init__.py")
    assert not (tmp_path / ".ray").exists()  # no token file


def test_two_fake_gpus_place_one_model_each(repository: Path, tmp_path: Path) -> None:
    """A Ray with two GPUs that are none: torch sees no CUDA, so the models run on the CPU, each under its own GPU."""
    program = textwrap.dedent(
        """
        import logging, sys
        import ray
        from diversed.cluster import connect, engine_for, nodes, search_plan
        from diversed.models import load_pair
        from diversed.settings import DecodeSettings, PairSettings, Settings

        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        settings = PairSettings(placement="actors")
        with connect():
            print(search_plan(Settings(pair=settings), nodes()))
            engine_for(settings, load_pair(settings), DecodeSettings(method="strict")).close()
        """
    )
    environment = os.environ | {"PYTHONPATH": f"{repository / 'platform'}:{repository}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a trial: CPU=1 GPU=2 (trial CPU=0.25, target CPU=0.5 GPU=1, draft CPU=0.25 GPU=1)" in done.stdout
    places = {line.split()[0]: line for line in done.stdout.splitlines() if "model on" in line}
    gpus = {name: line.partition("Ray's GPU ")[2].partition(",")[0] for name, line in places.items()}
    assert sorted(gpus) == ["draft", "target"]
    assert sorted(gpus.values()) == ["0", "1"]


def test_free_port_keeps_what_is_free_and_names_what_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = free_port("127.0.0.1", port)
        assert other != port
        assert f"port {port} of 127.0.0.1" in caplog.text
        assert f"using {other}" in caplog.text
    caplog.clear()
    assert free_port("127.0.0.1", other) == other
    assert free_port("127.0.0.1", 0) > 0
    assert not caplog.text


def test_host_of_another_machine_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"host '192\.0\.2\.1'.*address of this machine"):
        free_port("192.0.2.1", 8000)
