"""The inside of the sandbox: a program of its own, run by `sandbox.py` in a fresh interpreter. Standard library only.

Three processes. The first leaves the host's namespaces; the second is process 1 of the new ones, makes the file system
read-only and waits; the third runs the completion under its limits. Only the third runs foreign code. When the second
ends, the kernel kills whatever is left in its namespace.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

__all__ = ["main"]

# mount, host name, IPC, user, process and network namespaces
CLONE_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 0x40000
MS_RDONLY = 1
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24

# Events that a solution of a textbook problem has no use for. Hooks cannot be taken away again.
DENIED = (
    "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn", "os.kill", "os.killpg",
    "subprocess.Popen", "pty.spawn", "socket.", "ctypes.", "signal.pthread_kill",
)  # fmt: skip


def enter(libc: ctypes.CDLL) -> None:
    """New namespaces, in which this user is root and may mount."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(CLONE_ALL), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def close_file_system(libc: ctypes.CDLL, folder: str) -> None:
    """All read-only but `folder`, which is in memory; /proc, which shows other processes, is empty."""
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount / private")
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    done = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, ctypes.byref(attributes), size)
    check(done, "mount / read-only")
    flags = MS_NOSUID | MS_NODEV
    check(libc.mount(b"none", folder.encode(), b"tmpfs", flags, b"size=16m,mode=700"), "mount a folder")
    check(libc.mount(b"none", b"/proc", b"tmpfs", flags | MS_RDONLY, b"size=4k"), "hide /proc")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def limit(cpu_seconds: int, memory: int) -> None:
    for name, value in (
        ("RLIMIT_CPU", cpu_seconds),
        ("RLIMIT_AS", memory),
        ("RLIMIT_FSIZE", 2**23),
        ("RLIMIT_NOFILE", 32),
        ("RLIMIT_NPROC", 1),  # root is exempt from it; DENIED is what holds then
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))


def run(program: str, tests: str, answer: int, word: bytes) -> None:
    """Foreign code from here on. `word` is written only after the last test has returned."""
    # Held here: the names that they come from can be given other meanings.
    execute, write, leave, base, pid = exec, os.write, os._exit, BaseException, os.getpid
    process = pid()
    compiled = [compile(text.replace("\r\n", "\n"), "completion.py", "exec") for text in (program, tests)]
    denied = DENIED

    def hook(event: str, _arguments: object) -> None:
        if event.startswith(denied):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(hook)
    names = {"__name__": "completion", "__builtins__": __builtins__}
    try:
        for code in compiled:
            execute(code, names)
    except base:
        leave(1)
    if pid() == process:
        write(answer, word)
    leave(0)


def main() -> None:
    folder, cpu_seconds, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    word, program, tests = sys.stdin.buffer.read().decode().split("\0")
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        enter(libc)
        if (first := os.fork()) != 0:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
        close_file_system(libc, folder)
    except OSError as error:
        os.write(1, f"closed: {error.strerror or error}".encode())
        os._exit(3)
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        os._exit(0)
    os.chdir(folder)
    answer = os.dup(1)
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())  # nothing may be mounted again
    limit(cpu_seconds, memory)
    try:
        run(program, tests, answer, word.encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
