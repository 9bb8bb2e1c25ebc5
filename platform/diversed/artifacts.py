"""Files a run leaves behind: written whole or not at all, with a record of where they come from.

"Atomic" is meant against readers and killed processes: who opens a path sees the old content or the new, never a part.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from diversed.settings import Settings

__all__ = [
    "git_commit",
    "provenance",
    "replace_folder",
    "shown_command",
    "write_bytes_atomic",
    "write_json_atomic",
    "write_run_record",
    "write_text_atomic",
    "write_yaml_atomic",
]

PACKAGES = (
    "diversed",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "ray",
    "mlflow",
    "optuna",
    "datasets",
    "pydantic",
)


def _sibling(path: Path, role: str) -> Path:
    """A hidden name in the same folder (a rename must not cross file systems) that no other process has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.{role}")


def write_bytes_atomic(path: Path, content: bytes) -> None:
    """Write `content` at `path`; missing parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(path, "tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` as UTF-8 at `path`; missing parent folders are made."""
    write_bytes_atomic(path, text.encode())


def write_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as indented JSON. ValueError for NaN and infinity, which JSON does not have."""
    write_text_atomic(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_yaml_atomic(path: Path, value: Any) -> None:
    """Write `value`, plain Python values only, as YAML in the order of its keys."""
    write_text_atomic(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which becomes `folder` at the end of the block; what stood there is removed.

    If the block raises, `folder` stays as it was. Two renames swap an existing folder, so for an instant there is none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _sibling(folder, "tmp"), _sibling(folder, "old")
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
    finally:
        if old.exists() and not folder.exists():  # stopped between the two renames
            old.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def git_commit() -> str | None:
    """Commit of the running code: its checkout's, else DIVERSED_GIT_COMMIT (a Ray working directory has no .git)."""
    return _checkout()[0] or os.environ.get("DIVERSED_GIT_COMMIT") or None


@cache
def _checkout() -> tuple[str | None, bool | None]:
    """Commit of the checkout that tracks this file and whether tracked files differ from it; (None, None) without."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *arguments], check=False, capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed copy may lie in a virtual environment inside somebody else's checkout.
    if git("ls-files", "--error-unmatch", here.name) is None or (commit := git("rev-parse", "HEAD")) is None:
        return None, None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else changes != ""


def provenance() -> dict[str, Any]:
    """Who wrote an artifact: command, commit, versions, machine, time. Plain YAML/JSON values."""
    return {
        "command": [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]],  # not where one machine keeps its interpreter
        "git_commit": git_commit(),
        "git_dirty": _checkout()[1],
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": _device(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def shown_command(command: Sequence[str]) -> str:
    """A provenance's command, without the paths of the machine it ran on."""
    return shlex.join(word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in command)


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an image for models alone has no ray or mlflow
    return versions


def _device() -> str:
    import torch  # here, so that jobs which only write text start fast

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return f"cpu ({platform.machine()})"


def write_run_record(folder: Path, settings: Settings, **extra: Mapping[str, Any]) -> None:
    """`run.yaml` (settings, provenance, `extra` sections) and `command.txt` (to paste into a shell) in `folder`."""
    record = provenance()
    write_yaml_atomic(folder / "run.yaml", {"settings": settings.record(), "provenance": record, **extra})
    write_text_atomic(folder / "command.txt", shlex.join(record["command"]) + "\n")
