"""Run one command that ends when its caller ends, however it ends, and remove the shared memory
that the command leaves behind.

    python supervisor.py [--at-once] SHM_PATTERN... -- COMMAND...

The caller holds the other end of standard input and never writes. When it closes, on purpose or
because the caller was killed, the command gets SIGTERM. After a grace period, with `--at-once`
immediately, it gets SIGKILL, and so do all processes in its session. The session has the
supervisor's process id, so a caller can end it even if the supervisor was killed.

Then the supervisor removes this user's files of /dev/shm that match a pattern and that no client
uses. It also removes the empty folders in /tmp that Triton's Python backend makes and killed
servers leave. The exit code is the command's. The supervisor imports only the standard library: it
starts in 30 ms and needs no site-packages.
"""

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

GRACE_SECONDS = 10.0
AT_ONCE = "--at-once"
PR_SET_PDEATHSIG = 1
PYTHON_BACKEND = "libtriton_python.so"
ENVIRONMENTS = "python_env_*"  # in /tmp, wherever temporary files belong
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def before_exec() -> None:
    """Restore the child's signal handlers, and end it with the supervisor."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read(file: Path) -> str:
    """Read a file of /proc. A name in it may be in any encoding, or cut off within a character."""
    return os.fsdecode(file.read_bytes())


def processes_in_session(session: int) -> list[int]:
    """List the other live processes of `session`, read from /proc."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, its_session = read(entry / "stat").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z" and int(entry.name) != os.getpid():
                processes.append(int(entry.name))
    return processes


def memory_maps() -> Iterator[tuple[Path, str]]:
    """Yield the folder in /proc and the memory maps of each process that this user may read."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield entry, read(entry / "maps")


def shared_memory_users(servers: bool) -> dict[str, set[int]]:
    """Map each path under /dev/shm that is in use to the processes that use it.

    `servers` says whether a Triton counts: it maps what its clients make, and keeps it when they
    end.
    """
    users: dict[str, set[int]] = {}
    for entry, maps in memory_maps():
        with suppress(OSError):
            if servers or read(entry / "comm").strip() != "tritonserver":
                for path in re.findall("/dev/shm/.*", maps):
                    users.setdefault(path, set()).add(int(entry.name))
    return users


def remove_shared_memory(patterns: Sequence[str]) -> None:
    """Remove this user's files of /dev/shm that match a pattern and that no client uses."""
    shared = Path("/dev/shm").iterdir()
    matching = [path for path in shared if any(fnmatch(path.name, pattern) for pattern in patterns)]
    used = shared_memory_users(servers=False) if matching else {}
    for path in matching:
        with suppress(OSError):
            if str(path) not in used and path.stat().st_uid == os.getuid():
                path.unlink()


def kill_session(session: int, seconds: float = GRACE_SECONDS) -> None:
    """Wait until the other processes of `session` have ended, and kill them after `seconds`.

    In this time stubs detect that their server has ended, and remove their shared memory.
    """
    deadline = time.monotonic() + seconds
    while processes_in_session(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes_in_session(session):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_SECONDS
    while processes_in_session(session) and time.monotonic() < deadline:
        time.sleep(0.01)  # until it has gone, its shared memory counts as used


def remove_environments() -> None:
    """Remove this user's empty folders for archives of Python environments, unless a server lives.

    Each Triton makes a folder, has no such archive from this package, and aborts at its end if the
    folder is missing. The owner of a folder is unknown, so the last server to end removes those of
    all. They are listed first, since a server may start meanwhile.
    """
    folders = list(Path("/tmp").glob(ENVIRONMENTS))
    if folders and not any(PYTHON_BACKEND in maps for _, maps in memory_maps()):
        for folder in folders:
            with suppress(OSError):
                if folder.stat().st_uid == os.getuid():
                    folder.rmdir()


def end(child: "subprocess.Popen[bytes]", at_once: bool) -> None:
    """End the child, by force if it does not comply, and everything in its session."""
    if not at_once:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    child.kill()
    child.wait()
    kill_session(os.getsid(0), 0 if at_once else GRACE_SECONDS)


def main() -> int:
    split = sys.argv.index("--")
    patterns, command = sys.argv[1:split], sys.argv[split + 1 :]
    at_once = AT_ONCE in patterns
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=before_exec)
    ended = os.pidfd_open(child.pid)
    select.select([0, ended], [], [])
    end(child, at_once)
    remove_shared_memory(patterns)
    remove_environments()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
