import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from diversed import artifacts
from diversed.artifacts import (
    git_commit,
    provenance,
    replace_folder,
    write_json_atomic,
    write_run_record,
    write_text_atomic,
    write_yaml_atomic,
)
from diversed.settings import Settings, from_record


@pytest.fixture(autouse=True)
def _forget_the_checkout():
    artifacts._checkout.cache_clear()
    yield
    artifacts._checkout.cache_clear()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_replaced_whole_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "made" / "on the way" / "a.txt"
    write_text_atomic(path, "first\n")
    write_text_atomic(path, "ünï\n")
    assert path.read_bytes() == "ünï\n".encode()
    assert names(path.parent) == ["a.txt"]


def test_a_failed_write_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.json"
    write_json_atomic(path, {"n": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json_atomic(path, {"n": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_text_atomic(path, "\ud800")
    assert json.loads(path.read_text()) == {"n": 1}
    assert names(tmp_path) == ["a.json"]


def test_a_reader_never_sees_a_part(tmp_path):
    path, seen, done = tmp_path / "a.txt", set(), threading.Event()
    write_text_atomic(path, "a" * 200_000)

    def read():
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for letter in "bcdefghij" * 5:
        write_text_atomic(path, letter * 200_000)
    done.set()
    reader.join()
    assert all(len(text) == 200_000 and len(set(text)) == 1 for text in seen)


def test_yaml_keeps_the_order_of_keys(tmp_path):
    write_yaml_atomic(tmp_path / "a.yaml", {"z": [1.5, None], "a": float("inf")})
    assert (tmp_path / "a.yaml").read_text() == "z:\n- 1.5\n- null\na: .inf\n"


def test_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    folder = tmp_path / "out" / "epoch-001"
    for content in ("first", "second"):
        with replace_folder(folder) as temporary:
            (temporary / content).write_text(content)
            assert names(folder) == (["first"] if content == "second" else []) if folder.exists() else True
    assert names(folder) == ["second"]
    assert names(folder.parent) == ["epoch-001"]


def test_folder_stays_as_it_was_when_the_block_raises(tmp_path):
    folder = tmp_path / "epoch-001"
    with replace_folder(folder) as temporary:
        (temporary / "a").write_text("whole")
    with pytest.raises(KeyboardInterrupt), replace_folder(folder) as temporary:  # noqa: PT012
        (temporary / "a").write_text("half")
        raise KeyboardInterrupt
    assert (folder / "a").read_text() == "whole"
    assert names(tmp_path) == ["epoch-001"]


def test_folder_comes_back_when_the_second_rename_fails(tmp_path):
    folder = tmp_path / "epoch-001"
    with replace_folder(folder) as temporary:
        (temporary / "a").write_text("whole")
    with pytest.raises(FileNotFoundError), replace_folder(folder) as temporary:
        temporary.rmdir()
    assert (folder / "a").read_text() == "whole"
    assert names(tmp_path) == ["epoch-001"]


def test_provenance_is_plain_and_complete():
    record = provenance()
    assert json.loads(json.dumps(record)) == yaml.safe_load(yaml.safe_dump(record)) == record
    assert record["command"] == [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]
    assert {"torch", "pydantic"} <= record["packages"].keys()
    assert record["date"].endswith("+00:00")


def test_run_record_reads_back_as_settings(tmp_path):
    settings = Settings(seed=7, train={"learning_rate": 5e-4})
    write_run_record(tmp_path, settings, pair={"name": "arithmetic"})
    record = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert from_record(record["settings"]) == settings
    assert record["pair"] == {"name": "arithmetic"}
    assert (tmp_path / "command.txt").read_text().count("\n") == 1


def test_commit_of_the_checkout(monkeypatch):
    monkeypatch.setenv("DIVERSED_GIT_COMMIT", "from-env")
    here = Path(artifacts.__file__).parent
    asked = subprocess.run(["git", "-C", here, "ls-files", "artifacts.py"], capture_output=True, text=True, check=False)
    if asked.stdout.strip() == "":
        pytest.skip("the package under test is not in a git checkout")
    head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert git_commit() == head.stdout.strip()


@pytest.mark.parametrize("variable", ["abc123", None])
def test_commit_outside_a_checkout_is_the_variable_or_null(variable, monkeypatch, tmp_path):
    # An untracked copy inside somebody's repository must not take that repository's commit.
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    monkeypatch.setattr(artifacts, "__file__", str(tmp_path / "artifacts.py"))
    (tmp_path / "artifacts.py").write_text("")
    monkeypatch.delenv("DIVERSED_GIT_COMMIT", raising=False)
    if variable:
        monkeypatch.setenv("DIVERSED_GIT_COMMIT", variable)
    assert git_commit() == variable
    assert provenance()["git_dirty"] is None


def test_commit_without_git_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DIVERSED_GIT_COMMIT", "abc123")
    assert git_commit() == "abc123"


def test_importing_costs_no_torch():
    check = "import sys, diversed.artifacts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], env=dict(os.environ), check=False).returncode == 0
