"""`make demo` starts a Ray of its own and `make demo-stop` ends that one and no other process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from diversed.errors import ClusterError
from diversed.settings import Settings
from jobs import demo


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The demo of an empty checkout: its state and its Ray's folder belong to this test."""
    monkeypatch.setattr(demo, "CHECKOUT", tmp_path)
    monkeypatch.setattr(demo, "FOLDER", tmp_path / ".demo")
    monkeypatch.setattr(demo, "STATE", tmp_path / ".demo" / "state.json")
    monkeypatch.setenv("DIVERSED_OUTPUT", str(tmp_path / "runs"))  # demo.main sets it: here it is put back
    yield tmp_path
    if demo.STATE.exists():
        demo.stop()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process, leading a session as a Ray head does."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def head_of(pid: int, temp_dir: str) -> demo.Head:
    return demo.Head(pid, temp_dir, gcs_port=1, dashboard_port=1, agent_port=1, client_port=1, serve_port=1)


def record(head: demo.Head) -> None:
    demo.FOLDER.mkdir(exist_ok=True)
    demo.STATE.write_text(json.dumps(asdict(head)))


def test_a_process_number_that_was_given_to_somebody_else_is_left_alone(
    checkout: Path, stranger: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    head = head_of(stranger.pid, str(checkout / "ray"))
    assert head.processes() == []
    assert head.leader() is None
    record(head)
    assert demo.main(["stop"]) == 0
    assert stranger.poll() is None
    assert not demo.STATE.exists()
    assert "gone already" in capsys.readouterr().out


def test_stop_without_a_demo(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["stop"]) == 0
    assert "no demo of this checkout is running" in capsys.readouterr().out


def test_orphans_of_a_killed_head_are_found_and_ended(checkout: Path) -> None:
    """The first process is gone, another of its session lives and names the folder in its command line."""
    folder = checkout / "ray"
    folder.mkdir()
    # The child itself says that it is there: right after its start it has no command line yet.
    lives = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {lives!r}, {str(folder)!r}])\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        orphan = psutil.Process(int(leader.stdout.readline()))
        leader.kill()
    head = head_of(leader.pid, str(folder))
    assert [process.pid for process in head.processes()] == [orphan.pid]
    record(head)
    demo.stop()
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()


def test_a_head_that_is_just_starting_is_alive(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first process has no command line for a moment: neither `start` nor `stop` may take it for gone."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as starting:
        try:
            head = head_of(starting.pid, str(checkout / "ray"))
            assert head.leader() is None  # its command line names something else
            monkeypatch.setattr(psutil.Process, "cmdline", lambda _: [])
            assert head.leader() is not None
            assert [process.pid for process in head.processes()] == [starting.pid]
        finally:
            starting.kill()


def test_two_at_once_are_refused(checkout: Path) -> None:
    with demo._alone(), pytest.raises(ClusterError, match="another `make demo`"), demo._alone():
        pass


def test_a_taken_port_is_named_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = taken.getsockname()[1]
        used: set[int] = set()
        port = demo._port("dashboard_port", wanted, used)
    assert port != wanted
    assert used == {port}
    assert f"port {wanted} is taken: dashboard port is {port}" in capsys.readouterr().out
    assert demo._port("other", port, used) != port


def test_head_gets_no_other_clusters_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("DIVERSED_SEED", "1")
    environment = demo._environment()
    assert "RAY_ADDRESS" not in environment
    assert "DIVERSED_SEED" not in environment
    assert environment["RAY_AUTH_MODE"] == "disabled"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_bad_settings_are_refused_before_anything_starts(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["start", "--draft-length", "-1"]) == 2
    assert "decode.draft_length = '-1'" in capsys.readouterr().err
    assert not demo.STATE.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the head outlives its starter
@pytest.mark.timeout(900)
def test_a_head_starts_is_used_again_and_ends_without_a_trace(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real head; about a quarter of a minute on an idle machine."""
    submitted = []
    monkeypatch.setattr(demo, "_submit", lambda head, *_: submitted.append(head))
    demo.start(Settings(), [])
    demo.start(Settings(), [])
    first, second = submitted
    assert first == second
    assert first.answers()
    assert f"re-using this checkout's Ray head, process {first.pid}" in capsys.readouterr().out
    processes = first.processes()
    assert len(processes) > 3
    assert Path(first.temp_dir).is_dir()
    demo.stop()
    assert [process for process in processes if process.is_running()] == []
    assert not Path(first.temp_dir).exists()
    assert not demo.STATE.exists()
