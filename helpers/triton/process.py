"""Starting a command that ends with its caller: the caller's side of `guard`."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

COMPANIONS = ("guard.py",)  # started as a program of its own
GUARD = Path(__file__).with_name("guard.py")

# Of every process that computes, so that a bare runtime and a served one differ in nothing: threads
# sleep while they wait, and glibc keeps the memory of arrays instead of giving it back after each
# call and asking for it page by page in the next.
SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


def start(
    command: Sequence[str],
    *,
    log: IO[bytes],
    env: Mapping[str, str] | None = None,
    sweep: Sequence[str] = (),
) -> "subprocess.Popen[bytes]":
    """Start `command` under its guard with standard output and error going to `log`.

    `sweep` holds patterns of names under /dev/shm that the command may leave behind.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *sweep, "--", *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


def stop(process: "subprocess.Popen[bytes]") -> int:
    """End the command, wait until everything of it is gone, and give its exit code."""
    if process.stdin and not process.stdin.closed:
        process.stdin.close()
    return process.wait()
