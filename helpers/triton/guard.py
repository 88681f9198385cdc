"""Runs one command that must not outlive its caller, however the caller ends, and clears what the
command leaves behind.

    python guard.py SHM_PATTERN... -- COMMAND...

The caller holds the other end of standard input and never writes. When it closes, on purpose or
because the caller was killed, the command gets SIGTERM, after a grace period SIGKILL, and with it
everything in its session. Afterwards the files of /dev/shm that match a pattern, are this user's
and are in use by no client are removed. The exit code is the command's. Only the standard library
is imported: it starts in 30 ms and needs no site-packages.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

GRACE_SECONDS = 10
PR_SET_PDEATHSIG = 1
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def before_exec() -> None:
    """In the child: listen to signals again, and die with the guard, which may be killed too."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def processes_in_session(session: int) -> list[int]:
    """List the live processes of `session`, read from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(entry.name))
    return found


def mapped_files() -> set[str]:
    """List the paths under /dev/shm that some process uses now.

    A Triton server does not count: it maps what its clients make, and keeps it when they end.
    """
    mapped: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines = (entry / "maps").read_text().splitlines()
            if (entry / "comm").read_text().strip() != "tritonserver":
                mapped.update(
                    line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line
                )
    return mapped


def sweep(patterns: list[str]) -> list[str]:
    """Remove this user's files of /dev/shm that match a pattern and that no process has mapped;
    return their names.
    """
    shm = Path("/dev/shm")
    matching = [path for path in shm.iterdir() if any(fnmatch(path.name, p) for p in patterns)]
    if not matching:
        return []
    mapped = mapped_files()
    removed = []
    for path in matching:
        with suppress(OSError):
            if str(path) not in mapped and path.stat().st_uid == os.getuid():
                path.unlink()
                removed.append(path.name)
    return removed


def end(child: "subprocess.Popen[bytes]") -> None:
    """End the child and its session: politely, then not; stubs first see their server go, so that
    they clear their own.
    """
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    if child.poll() is None:
        child.kill()
        child.wait()
    deadline = time.monotonic() + GRACE_SECONDS
    while processes_in_session(child.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in processes_in_session(child.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> int:
    split = sys.argv.index("--")
    patterns, command = sys.argv[1:split], sys.argv[split + 1 :]
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=before_exec,
    )
    ended = os.pidfd_open(child.pid)
    select.select([0, ended], [], [])
    end(child)
    sweep(patterns)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
