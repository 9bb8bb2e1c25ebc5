"""Being connected to a Ray: the one a job was submitted to, or a local one that ends with the caller.

Never a strange one: `ray.init()` alone joins any Ray that it finds on the machine, whoever started it.
"""

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from diversed.errors import ClusterError

__all__ = ["Session", "connect", "free_port", "nodes"]

logger = logging.getLogger(__name__)

SHIPPED = ("diversed", "jobs", "tune_spaces", "serve_apps")  # packages that workers import
IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray for the entrypoint of a submitted job
PROBE_SECONDS = 5.0
# Ray replaces 127.0.0.1 as a node's address by the machine's own on Linux; another loopback address stays as it is.
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Session:
    """A live connection."""

    local: bool  # the cluster ends with this session
    dashboard_url: str | None


@contextmanager
def connect(dashboard: bool = False) -> Iterator[Session]:
    """Connected to Ray inside the block.

    With RAY_ADDRESS set, as in a submitted job, to that cluster; else to a new local cluster on loopback, with a
    dashboard if asked for. A connection that is already there is used and left alone. ClusterError, one line, if the
    cluster of RAY_ADDRESS does not answer or refuses.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield Session(local=False, dashboard_url=_dashboard_url())
        return
    address = os.environ.get("RAY_ADDRESS")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    if address:
        _join(address)
    else:
        _start(dashboard)
    # Ray's own handler prints a stack trace and aborts; the caller's comes back.
    if threading.current_thread() is threading.main_thread() and on_sigterm is not None:
        signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield Session(local=not address, dashboard_url=_dashboard_url())
    finally:
        ray.shutdown()


def nodes() -> list[Mapping[str, float]]:
    """Resources of each live node, for `resources.require`."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_port(host: str, preferred: int) -> int:
    """`preferred` if it can be listened on at `host`, else a free port, which the log names. 0: any free port."""
    try:
        return _bind(host, preferred)
    except OSError as error:
        reason = error.strerror
    try:
        chosen = _bind(host, 0)
    except OSError as error:
        raise ClusterError(f"host {host!r}: {error.strerror}; give an address of this machine") from error
    logger.warning("port %d of %s is not to be had (%s): using %d", preferred, host, reason, chosen)
    return chosen


def _bind(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _start(dashboard: bool) -> None:
    import ray

    # Ray's default differs between its commands: a new local cluster asks for a token, `ray job submit` sends none.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        ray.init(
            address="local",
            include_dashboard=dashboard,
            dashboard_host="127.0.0.1",
            _node_ip_address=LOOPBACK,
            runtime_env=_worker_environment(),
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
    except Exception as error:
        if "timed out during startup" not in str(error):  # Ray has no type of its own for it
            raise
        raise ClusterError("a local Ray did not start within 30 s: the machine is too busy; try again") from error


def _join(address: str) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname and parts.port:
        try:
            socket.create_connection((parts.hostname, parts.port), PROBE_SECONDS).close()
        except OSError as error:
            raise ClusterError(
                f"RAY_ADDRESS = {address!r} does not answer ({error.strerror or error}); start that cluster, "
                "or unset RAY_ADDRESS to use a local one"
            ) from error
    # A job's own runtime environment already says where its code is.
    environment = None if IN_JOB in os.environ else _worker_environment()
    try:
        ray.init(address=address, runtime_env=environment, logging_level=logging.WARNING, log_to_driver=False)
    except AuthenticationError as error:
        raise ClusterError(
            f"RAY_ADDRESS = {address!r} refuses: {_first_line(error)}; set RAY_AUTH_MODE (disabled or token) as on "
            "the cluster's side"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"RAY_ADDRESS = {address!r}: {_first_line(error)}; give HOST:PORT of a running Ray, or unset it to use a "
            "local one"
        ) from error


def _worker_environment() -> dict[str, Any]:
    """Where workers on this machine find the platform's packages: where this process finds them."""
    folders: list[str] = []
    for name in SHIPPED:
        spec = importlib.util.find_spec(name)
        locations = (spec.submodule_search_locations or []) if spec is not None else []
        folders.extend(str(Path(location).absolute().parent) for location in locations)
    inherited = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(dict.fromkeys([*folders, *inherited]))}}


def _dashboard_url() -> str | None:
    from ray._private.worker import get_dashboard_url

    url = get_dashboard_url()
    return f"http://{url}" if url else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
