"""Hostile completions score 0 within their limit and leave nothing behind; harmless ones score what they are worth."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

from diversed.errors import ConfigError
from diversed.tasks import sandbox
from diversed.tasks.sandbox import passes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of Linux namespaces")

TESTS = "assert add(1, 2) == 3\nassert add(2, 2) == 4"
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
MARK = "diversed-hostile-mark"

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    "fork bomb by a library": "import multiprocessing as m\nwhile True:\n    m.Process(target=print).start()\n",
    "process that stays": "import _posixsubprocess as p\n"
    "p.fork_exec([b'/bin/sleep', b'600'], [b'/bin/sleep'], True, (),"
    " None, None, -1, -1, -1, -1, -1, -1, -1, -1, False, False, 0, None, None, None, -1, None, False)\n" + WRONG,
    "subprocess": f"import subprocess\nsubprocess.Popen(['sleep', '600', '{MARK}'])\n" + WRONG,
    "thread that stays": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n" + WRONG,
    "endless output": "import sys\nwhile True:\n    sys.stdout.write('x' * 10**6)\n",
    "output to every descriptor": "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'0' * 10**5)\n"
    "    except OSError:\n        pass\n" + RIGHT,
    "writing outside": f"open('/tmp/{MARK}', 'w').write('x')\n" + RIGHT,
    "writing into home": f"import os\nopen(os.path.expanduser('~/{MARK}'), 'w').write('x')\n" + RIGHT,
    "writing beside the code": f"open({str(Path(sandbox.__file__).parent)!r} + '/{MARK}', 'w')\n" + RIGHT,
    "remounting": "import ctypes\nctypes.CDLL(None).mount(b'none', b'/', None, 32, None)\n" + RIGHT,
    "filling its folder": "i = 0\nwhile True:\n    open(f'f{i}', 'wb').write(b'x' * 2**20)\n    i += 1\n",
    "a file beyond the limit": "open('f', 'wb').write(b'x' * 2**24)\n" + RIGHT,
    "secrets of the environment": "import os\nassert os.environ['DIVERSED_TEST_SECRET']\n" + RIGHT,
    "secrets of another process": "import glob\nassert glob.glob('/proc/*/environ')\n" + RIGHT,
    "sockets": "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)\n" + RIGHT,
    "sockets without a hook": "import _socket\n_socket.socket().connect(('127.0.0.1', 22))\n" + RIGHT,
    "leaving before the asserts": "import os\nos._exit(0)\n",
    "leaving politely": "import sys\nsys.exit(0)\n",
    "leaving in the tests": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "patched exit": "import sys, os\nsys.exit = os._exit = lambda *a: None\nraise SystemExit(0)\n",
    "patched assertion": "import builtins\nbuiltins.AssertionError = ValueError\n" + WRONG,
    "patched builtins": "import builtins, os\nbuiltins.exec = builtins.compile = lambda *a, **k: None\n"
    "os.write = lambda *a: 0\n" + WRONG,
    "swallowing": "import sys\nsys.excepthook = lambda *a: None\n" + WRONG,
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)\n",
    "polite recursion": "def add(a, b):\n    return add(a, b)\n",
    "4 GiB": "x = bytearray(4 * 2**30)\n" + RIGHT,
    "memory by and by": "x = []\nwhile True:\n    x.append(bytearray(2**20))\n",
    "endless loop": "while True:\n    pass\n",
    "sleep": "import time\ntime.sleep(600)\n",
    "killing its parents": "import os, signal\nos.kill(1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGKILL)\n"
    + RIGHT,
    "a null byte": "\0" + RIGHT,
    "not Python": "def add(a, b:\n",
    "nested too deep": "(" * 10_000 + ")" * 10_000,
}


def left_behind(folder: Path) -> set[str]:
    """Processes of sandboxes made in `folder`, and files that a completion wrote or such a sandbox forgot.

    Other tests run beside these and have sandboxes of their own.
    """
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if bytes(folder) in command or MARK.encode() in command:
                found.add(f"process {process.name}")
    shared = map(Path, ("/tmp", "/dev/shm"))  # noqa: S108 - looked into, not written to
    for place in {Path.home(), Path(sandbox.__file__).parent, *shared}:
        found |= {str(path) for path in place.glob(f"*{MARK}*")}
    return found | {str(path) for path in folder.iterdir()}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_SECONDS", 2)
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 6.0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_completion_scores_0_and_leaves_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DIVERSED_TEST_SECRET", "hidden")
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    begin = time.monotonic()
    assert passes(HOSTILE[name], TESTS) is False
    assert time.monotonic() - begin < 60  # it ended by its own limits, on however slow a machine
    time.sleep(0.05)  # the kernel reaps a namespace after its first process
    assert left_behind(tmp_path) == set()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_right_passes_and_wrong_does_not() -> None:
    assert passes(RIGHT, TESTS) is True
    assert passes(WRONG, TESTS) is False
    assert passes(RIGHT.replace("\n", "\r\n"), TESTS) is True
    assert passes(RIGHT, "raise Exception") is False


def test_a_completion_may_use_its_folder_and_the_standard_library() -> None:
    program = "import collections, math, heapq, re, itertools, random, datetime\nP = collections.namedtuple('P', 'x')\n"
    program += "open('notes', 'w').write('3')\nadd = lambda a, b: int(open('notes').read()) + a + b - 3\n"
    assert passes(program, TESTS) is True


def test_nothing_runs_where_no_sandbox_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a system that forbids user namespaces: the child says so before it runs anything."""
    inside = Path(sandbox.__file__).with_name("sandboxed.py").read_text()
    refused = inside.replace('check(libc.unshare(CLONE_ALL), "unshare")', 'raise OSError(1, "unshare: no")')
    assert refused != inside
    (tmp_path / "sandboxed.py").write_text(refused)
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "sandbox.py"))
    with pytest.raises(ConfigError, match=r"Linux namespaces only, and this system refused: .*unshare: no"):
        passes(RIGHT, TESTS)
