"""The boundary of a job, mostly as a user meets it: a process with an exit code and lines on stderr."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diversed.errors import CheckpointError, DiversedError
from diversed.settings import Settings
from jobs._main import job, run_job

SCRIPT = """
import sys, time
from jobs._main import job

def stage(settings):
    '''For the help.'''
    print("seed", settings.seed, flush=True)
    {body}

main = job("Does one thing.")(stage)
if __name__ == "__main__":
    sys.exit(main())
"""
WAIT = """
    try:
        time.sleep(60)
    finally:
        print("unwinding", flush=True)
        time.sleep(0.5)
        print("unwound", flush=True)
"""


@pytest.fixture
def command(tmp_path):
    def start(body: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / "some_job.py").write_text(SCRIPT.format(body=body))
        path = os.pathsep.join([str(tmp_path), str(Path.cwd()), *sys.path])
        return subprocess.Popen(
            [sys.executable, "-m", "some_job", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def outcome(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_settings_reach_the_stage(command):
    assert outcome(command("pass", "--seed", "5")) == (0, "seed 5\n", "")


def test_bad_input_is_one_line_and_exit_code_2(command):
    code, out, err = outcome(command("pass", "--draft-length", "-3"))
    assert (code, out) == (2, "")
    assert err.startswith("error: decode.draft_length = ")
    assert err.count("\n") == 1


def test_help_names_the_command_as_typed(command):
    code, out, err = outcome(command("pass", "--help"))
    assert (code, err) == (0, "")
    assert out.startswith("usage: python -m some_job ")


def test_a_bug_keeps_its_traceback(command):
    code, _, err = outcome(command("{}['x']"))
    assert code == 1
    assert "Traceback" in err
    assert err.rstrip().endswith("KeyError: 'x'")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_unwinds_once(command, number, code):
    process = command(WAIT)
    assert process.stdout.readline() == "seed 0\n"
    time.sleep(0.2)
    process.send_signal(number)
    assert process.stdout.readline() == "unwinding\n"
    process.send_signal(signal.SIGINT)  # as `timeout` and `make` do: the same stop, twice
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (code, "unwound\n", f"stopped by {number.name}\n")


def test_errors_on_purpose_by_their_exit_codes(capsys):
    def raises(error):
        def stage(_settings):
            raise error

        return run_job(stage, [])

    assert raises(CheckpointError("verifier.checkpoint = x:\n  no such folder")) == 2
    assert raises(DiversedError("the cluster\nlost a node")) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: verifier.checkpoint = x: no such folder",
        "error: the cluster lost a node",
    ]


def test_an_error_that_comes_back_from_a_ray_worker_is_one_line_too(capsys):
    exceptions = pytest.importorskip("ray.exceptions")
    remote = exceptions.RayTaskError("task", "Traceback ...\n  many\n  lines", CheckpointError("no such folder"))

    def stage(_settings):
        raise remote.as_instanceof_cause()

    assert run_job(stage, []) == 2
    assert capsys.readouterr().err == "error: no such folder\n"


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run_job(lambda _settings: os.kill(os.getpid(), signal.SIGTERM), []) == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_stage_stays_callable():
    def stage(settings):
        """Documented."""
        return settings.seed

    main = job("x")(stage)
    assert main.__wrapped__(Settings(seed=3)) == 3
    assert main([]) == 0
