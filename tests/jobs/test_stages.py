"""Attempts: what is taken up, what is begun anew, and that nobody works beside another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diversed.errors import ConfigError
from diversed.settings import Settings
from jobs._stages import attempt_at, duration, fingerprint, run_stages

HOLD = """
import sys, time
from pathlib import Path
from jobs._stages import attempt_at
with attempt_at(Path(sys.argv[1]), True):
    print("held", flush=True)
    time.sleep(120)
"""


def stages(calls: list[str], stop_at: str | None = None):
    def stage(name):
        def run(folder: Path):
            if name == stop_at:
                raise KeyboardInterrupt
            calls.append(name)
            (folder / "file").write_text(name)
            return {"name": name}

        return run

    return {name: stage(name) for name in ("train", "search", "deploy")}


def test_an_interrupted_attempt_goes_on_at_its_stage(tmp_path, capsys):
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt), attempt_at(tmp_path, resume=True) as attempt:
        run_stages(attempt, stages(calls, stop_at="search"), lasting=2)
    with attempt_at(tmp_path, resume=True) as attempt:
        assert attempt.resumed
        run_stages(attempt, stages(calls), lasting=2)
        assert attempt.result("train") == {"name": "train"}
        attempt.finish()
    assert calls == ["train", "search", "deploy"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["1"]
    assert "[1/3] train: done before" in capsys.readouterr().out


def test_what_does_not_last_is_run_at_each_resumption(tmp_path):
    calls: list[str] = []
    for _ in range(2):
        with attempt_at(tmp_path, resume=True) as attempt:
            run_stages(attempt, stages(calls), lasting=2)
    assert calls == ["train", "search", "deploy", "deploy"]


@pytest.mark.parametrize(("finish", "resume"), [(True, True), (False, False)])
def test_a_new_attempt_after_a_finished_one_or_on_demand(tmp_path, finish, resume):
    with attempt_at(tmp_path, resume=True) as first:
        if finish:
            first.finish()
    with attempt_at(tmp_path, resume=resume) as second:
        assert (first.folder.name, second.folder.name) == ("1", "2")
        assert not second.resumed


def test_attempt_10_is_later_than_9(tmp_path):
    for number in range(1, 12):
        with attempt_at(tmp_path, resume=True) as attempt:
            attempt.finish()
        assert attempt.folder.name == str(number)


def test_two_processes_do_not_share_a_folder_and_a_dead_one_holds_nothing(tmp_path):
    path = os.pathsep.join([str(Path.cwd()), *sys.path])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with (
                pytest.raises(ConfigError, match=f"is in use by process {holder.pid} on "),
                attempt_at(tmp_path, resume=True),
            ):
                pass
        finally:
            holder.kill()
    with attempt_at(tmp_path, resume=True) as attempt:
        assert attempt.folder.name == "1"


def test_the_fingerprint_is_of_what_has_an_effect():
    settings = Settings()
    for name, value in {"resume": False, "serve.port": 9000, "output": "/elsewhere"}.items():
        assert fingerprint(settings.updated({name: value})) == fingerprint(settings)
    for name, value in {"seed": 1, "train.lam": 0.2, "search.trials": 3, "tracking.experiment": "x"}.items():
        assert fingerprint(settings.updated({name: value})) != fingerprint(settings)


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 59.4, 60, 187)] == ["0 s", "59 s", "1 min 00 s", "3 min 07 s"]
