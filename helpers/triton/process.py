"""Starting a command that ends with its caller: the caller's side of `guard`."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

GUARD = Path(__file__).with_name("guard.py")


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
