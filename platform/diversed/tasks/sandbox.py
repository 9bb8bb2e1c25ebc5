"""Runs programs that a model wrote.

Covered: they run in an interpreter of their own, in fresh user, process, mount, network and IPC namespaces, without
capabilities. No network; no other process is visible, and none survives; the file system is read-only but for a folder
in memory that vanishes with them (16 MB); the environment is empty; CPU time, wall clock, address space, file size and
open files are bounded; no process can be started; output goes nowhere. Ending early, however politely,
is not passing: a word that this process made up must come back, and it is sent after the last test returned.

Not covered: what the user may read can be read (but not sent anywhere). A completion that searches its own process's
memory for the word finds it; so does one whose objects claim to equal anything pass any `assert`. A hole in the kernel.
Load: one core, for the given seconds.

Needs Linux with user namespaces; where they are missing nothing is run at all.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

from diversed.errors import ConfigError

__all__ = ["is_python", "passes"]

CPU_SECONDS = 12
WALL_SECONDS = 40.0  # under load a process gets a part of a core
MEMORY = 2**30  # bytes of address space


def passes(program: str, tests: str) -> bool:
    """Whether `tests` run to their end after `program`. ConfigError where no sandbox can be made."""
    if "\0" in program or not is_python(program):
        return False
    word = secrets.token_hex(16)
    child = Path(__file__).with_name("sandboxed.py")
    with tempfile.TemporaryDirectory(prefix="diversed-sandbox-") as folder:
        command = [sys.executable, "-s", "-S", "-P", "-B", str(child), folder, str(CPU_SECONDS), str(MEMORY)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"task.name: a sandbox cannot be started: {error}") from error
        try:
            answer, _ = process.communicate(f"{word}\0{program}\0{tests}".encode(), timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    if answer.startswith(b"closed: "):
        reason = answer.decode(errors="replace").removeprefix("closed: ")
        raise ConfigError(
            f"task.name: completions are run in Linux namespaces only, and this system refused: {reason}; allow user "
            "namespaces (kernel.unprivileged_userns_clone), or choose another task"
        )
    return answer == word.encode()


def is_python(program: str) -> bool:
    """Whether it compiles. Nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in others' strings
            compile(program.replace("\r\n", "\n"), "completion.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """The first two processes form a group that foreign code never leaves; the third dies with them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
