"""`make demo` and `make demo-stop`: a Ray head of this checkout's own on loopback, and the pipeline submitted to it.

    python -m jobs.demo start [settings of jobs.pipeline]      # re-uses the head of an earlier start, if it lives
    python -m jobs.demo stop                                   # ends that head and all its processes, no other Ray

What runs is recorded in `.demo/state.json` before anything is waited for, so that `stop` finds it whatever happened.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

from diversed.artifacts import git_commit, write_json_atomic, write_yaml_atomic
from diversed.errors import ClusterError, DiversedError
from diversed.settings import Settings
from jobs._main import run_job

__all__ = ["Head", "main"]

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / ".demo"
STATE = FOLDER / "state.json"
HOST = "127.0.0.1"
# Ray replaces 127.0.0.1 as a node's address by the machine's own on Linux; another loopback address stays as it is.
NODE = "127.0.0.2" if sys.platform == "linux" else HOST
START_TIMEOUT = 180.0  # seconds; a head takes 8 on an idle machine and 14 on a busy one
STOP_TIMEOUT = 60.0  # seconds; up to 33 were seen

# One authentication mode for head, workers and commands: Ray's default differs between them.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "NO_PROXY": f"{HOST},{NODE},localhost",
}
STRANGE_CLUSTERS = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS", "RAY_TMPDIR", "RAY_NAMESPACE")


@dataclass(frozen=True)
class Head:
    """A running head: its first process leads a session of its own, which all its other processes belong to."""

    pid: int
    temp_dir: str
    gcs_port: int
    dashboard_port: int
    agent_port: int
    client_port: int
    serve_port: int

    @property
    def dashboard(self) -> str:
        return f"http://{HOST}:{self.dashboard_port}"

    def processes(self) -> list[psutil.Process]:
        """All processes of the head, jobs included; [] if it is gone.

        The session's number alone could by now belong to somebody else: one member must name our folder.
        """
        members = [process for process in psutil.process_iter() if _session(process) == self.pid]
        if self.leader() is None and not any(self._names_folder(_command(process)) for process in members):
            return []
        family = {process.pid: process for process in members}
        for member in members:  # drivers of jobs lead sessions of their own
            family |= {child.pid: child for child in _children(member)}
        return list(family.values())

    def leader(self) -> psutil.Process | None:
        """The process of `ray start`, which ends all the others when it ends; None if it is gone."""
        try:
            leader = psutil.Process(self.pid)
            command = leader.cmdline()
            # Right after its start a process has no command line yet.
            is_ours = self._names_folder(command) if command else _session(leader) == self.pid
            alive = leader.status() != psutil.STATUS_ZOMBIE and is_ours
        except psutil.Error:
            return None
        return leader if alive else None

    def _names_folder(self, command: list[str]) -> bool:
        return any(self.temp_dir in part for part in command)

    def answers(self) -> bool:
        """Whether jobs can be submitted: the dashboard and the node's agent both reply."""
        agent = f"http://{NODE}:{self.agent_port}/api/local_raylet_healthz"
        return all(_call("GET", url) is not None for url in (f"{self.dashboard}/api/version", agent))


def start(settings: Settings, arguments: Sequence[str]) -> None:
    """Run the pipeline to its end on this checkout's head; the endpoint stays up.

    Raises:
        ClusterError: The head did not come up.
        DiversedError: The pipeline failed; carries its exit code.
    """
    mine = False
    try:
        with _alone():
            head = _running_head()
            mine = head is None
            head = head or _start_head(settings)
            try:
                _await(head)
            except ClusterError as error:
                # Ray gives its own node 30 seconds to come up, which a machine under load misses.
                print(f"{error}; trying once more", flush=True)
                mine = True
                head = _start_head(settings)
                _await(head)
        _submit(head, settings, arguments)
    except KeyboardInterrupt:
        if mine:
            with _alone():
                _stop_head()
        raise
    _say_where(head, settings)


def stop() -> None:
    """End what `start` started."""
    with _alone():
        _stop_head()


def _start_head(settings: Settings) -> Head:
    temp_dir = _temp_dir()
    taken: set[int] = set()
    ports = {
        name: _port(name, wanted, taken)
        for name, wanted in {
            "dashboard_port": 8265,
            "gcs_port": 6379,
            "agent_port": 52365,
            "client_port": 10001,
            "serve_port": settings.serve.port,
        }.items()
    }
    command = [
        str(_executable("ray")),
        *("start", "--head", "--block", "--disable-usage-stats"),
        f"--node-ip-address={NODE}",
        f"--port={ports['gcs_port']}",
        f"--dashboard-host={HOST}",
        f"--dashboard-port={ports['dashboard_port']}",
        f"--dashboard-agent-listen-port={ports['agent_port']}",
        f"--ray-client-server-port={ports['client_port']}",
        f"--temp-dir={temp_dir}",
    ]
    log = FOLDER / "head.log"
    print(f"starting a Ray head of this checkout's own, log in {log}", flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=temp_dir,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    head = Head(process.pid, str(temp_dir), **ports)
    write_json_atomic(STATE, asdict(head))
    return head


def _running_head() -> Head | None:
    """The recorded head, if its first process lives; what a dead one left is cleared away."""
    if not STATE.exists():
        return None
    head = Head(**json.loads(STATE.read_text()))
    if head.leader() is not None:
        print(f"re-using this checkout's Ray head, process {head.pid}, {head.dashboard}", flush=True)
        return head
    _stop_head()
    return None


def _await(head: Head) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not head.answers():
        alive = head.leader() is not None
        if not alive or time.monotonic() > deadline:
            what = f"does not answer at {head.dashboard}" if alive else "ended at once"
            last = (FOLDER / "head.log").read_text(errors="replace").strip().splitlines()[-3:]
            _stop_head()
            raise ClusterError(f"the Ray head {what}; last lines of {FOLDER / 'head.log'}: {' | '.join(last)}")
        time.sleep(0.5)


def _submit(head: Head, settings: Settings, arguments: Sequence[str]) -> None:
    """`ray job submit` of the pipeline, its output on this screen."""
    runtime_env = yaml.safe_load((CHECKOUT / "jobs/runtime_env.yaml").read_text())
    runtime_env["env_vars"] |= {
        **{name: value for name, value in os.environ.items() if name.startswith("DIVERSED_")},
        "DIVERSED_OUTPUT": str(settings.output),
        "DIVERSED_TRACKING__URI": settings.tracking_uri,
        "DIVERSED_SERVE__PORT": str(head.serve_port),
        "DIVERSED_GIT_COMMIT": git_commit() or "",
        "RAY_AUTH_MODE": RAY_ENVIRONMENT["RAY_AUTH_MODE"],
    }
    write_yaml_atomic(FOLDER / "runtime_env.yaml", runtime_env)
    job = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    command = [
        *("ray", "job", "submit", "--address", head.dashboard, "--working-dir", "."),
        *("--runtime-env", str((FOLDER / "runtime_env.yaml").relative_to(CHECKOUT)), "--submission-id", job),
        *("--", "python", "-m", "jobs.pipeline", *arguments),
    ]
    print(f"$ {shlex.join(command)}", flush=True)
    process = subprocess.Popen([str(_executable("ray")), *command[1:]], cwd=CHECKOUT, env=_environment())
    try:
        process.wait()
    except KeyboardInterrupt:
        _call("POST", f"{head.dashboard}/api/jobs/{job}/stop", timeout=10)
        process.terminate()
        process.wait()
        raise
    # The command's own exit code is 0 for a job that somebody stopped, and 1 for any failure.
    answer = _call("GET", f"{head.dashboard}/api/jobs/{job}", timeout=10)
    info: dict[str, Any] = json.loads(answer) if answer else {"status": "unknown: the head does not answer"}
    if info["status"] != "SUCCEEDED":
        error = DiversedError(
            f"job {job}: {info['status']}; Ray runs on for a look at its logs, `make demo-stop` ends it"
        )
        error.exit_code = info.get("driver_exit_code") or process.returncode or 1
        raise error


def _stop_head() -> None:
    if not STATE.exists():
        print("no demo of this checkout is running")
        return
    head = Head(**json.loads(STATE.read_text()))
    if head.leader() is not None:
        print(f"stopping this checkout's Ray head, process {head.pid}", flush=True)
        # Serve first: a head with replicas takes half a minute longer to end.
        _call("DELETE", f"{head.dashboard}/api/serve/applications/", timeout=30)
    processes = head.processes()
    if (leader := head.leader()) is not None:
        leader.terminate()
        psutil.wait_procs(processes, timeout=STOP_TIMEOUT)
    for process in (left := [process for process in processes if process.is_running()]):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if stuck := psutil.wait_procs(left, timeout=10)[1]:
        raise ClusterError(f"processes {', '.join(str(process.pid) for process in stuck)} of the demo do not end")
    shutil.rmtree(head.temp_dir, ignore_errors=True)
    STATE.unlink()
    print("stopped" if processes else "what the demo had started was gone already", flush=True)


def _say_where(head: Head, settings: Settings) -> None:
    print(
        f"""
Ray dashboard   {head.dashboard}   jobs, actors, Serve; it has no page for Tune
MLflow          MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false {_executable("mlflow")} ui --workers 1 \\
                  --backend-store-uri {settings.tracking_uri}
TensorBoard     {_executable("tensorboard")} --logdir {settings.output}
other commands  export RAY_API_SERVER_ADDRESS={head.dashboard} RAY_AUTH_MODE=disabled
end             make demo-stop""",
        flush=True,
    )


@contextmanager
def _alone() -> Iterator[None]:
    """One `start` or `stop` of this checkout at a time."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                f"another `make demo` or `make demo-stop` works in {CHECKOUT}; wait for it or stop it"
            ) from error
        yield


def _temp_dir() -> Path:
    """A folder of this user and checkout; short, because Ray puts Unix sockets deep inside."""
    name = f"dv-{os.getuid()}-{hashlib.blake2b(str(CHECKOUT).encode(), digest_size=4).hexdigest()}"
    folder = Path("/tmp", name)  # noqa: S108 - its owner is checked
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ClusterError(f"{folder} belongs to somebody else; remove it")
    return folder


def _port(name: str, wanted: int, taken: set[int]) -> int:
    """`wanted` if it is free on all addresses, else a free one, which is printed; added to `taken`."""
    for candidate in (wanted, *(0 for _ in range(20))):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", candidate))
            except OSError:
                continue
            port: int = listener.getsockname()[1]
        if port not in taken:
            break
    else:
        raise ClusterError(f"no free port for {name}")
    if wanted not in (0, port):
        print(f"port {wanted} is taken: {name.replace('_', ' ')} is {port}", flush=True)
    taken.add(port)
    return port


def _environment() -> dict[str, str]:
    """The caller's, without the settings (a job brings its own) and without another cluster's addresses."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in STRANGE_CLUSTERS and not name.startswith("DIVERSED_")
    }
    binaries = Path(sys.executable).parent
    return kept | RAY_ENVIRONMENT | {"PATH": f"{binaries}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def _executable(name: str) -> Path:
    return Path(sys.executable).parent / name


def _call(method: str, url: str, timeout: float = 2) -> bytes | None:
    """The reply's body; None if there is no good one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method), timeout=timeout) as reply:  # noqa: S310 - loopback
            body: bytes = reply.read()
            return body
    except (OSError, urllib.error.URLError):
        return None


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def main(argv: Sequence[str] | None = None) -> int:
    """The command line's `start` or `stop`; the exit code, for `start` the pipeline's own."""
    command, *arguments = (list(sys.argv[1:] if argv is None else argv)) or ["--help"]
    if command == "start":
        os.environ.setdefault("DIVERSED_OUTPUT", str(CHECKOUT / "runs"))

        def pipeline(settings: Settings) -> None:
            start(settings, arguments)

        return run_job(pipeline, arguments, "Run the pipeline on a Ray head of this checkout's own.")
    if command == "stop" and not arguments:
        try:
            stop()
        except DiversedError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        return 0
    print(__doc__)
    return 0 if command in {"-h", "--help"} else 2


if __name__ == "__main__":
    sys.exit(main())
