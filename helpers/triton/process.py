"""Running a command that ends with its caller: the caller's side of `guard`."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from helpers.triton import guard

ORPHAN_SECONDS = 2.0  # that a stub is given after its guard and its server were killed

# For every process that computes, so that a bare runtime and a served one differ in nothing:
# threads sleep while they wait, and glibc keeps the memory of arrays instead of returning it after
# each call and requesting it page by page in the next.
SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


@contextmanager
def guarded(
    command: Sequence[str],
    *,
    log: IO[bytes],
    env: Mapping[str, str] | None = None,
    sweep: Sequence[str] = (),
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `command` under its guard for as long as the block lasts, at most; standard output and
    error go to `log`. At the end everything of it is gone, and the exit code is known.

    `sweep` holds patterns of names under /dev/shm that the command may leave behind.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(guard.__file__)), *sweep, "--", *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
        if process.wait() < 0:  # the guard itself was killed: its work is left to us
            guard.end_session(process.pid, ORPHAN_SECONDS)
            guard.sweep(sweep)
