"""Run a command that ends with its caller, by `supervisor`, and describe why it ended."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from helpers.triton import supervisor

ORPHAN_SECONDS = 2.0  # that a stub is given after its supervisor and its server were killed

# Settings of every process that computes, so that in-process and served runtimes do not differ. A
# waiting OpenMP thread checks for work 1,000 times, some 0.01 ms by libgomp's own estimate, and
# then sleeps: small operators follow each other sooner. glibc keeps the memory of arrays, instead
# of returning it after each call and requesting it page by page in the next. A waiting thread takes
# cores from other processes: the user may set another count there.
SPIN = "GOMP_SPINCOUNT"
OPENMP = {"OMP_WAIT_POLICY": "PASSIVE", SPIN: os.environ.get(SPIN, "1000")}
SETTINGS = OPENMP | {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}  # glibc's malloc.h
_OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)\b")
ERROR = re.compile(r"[EF]\d+ ")  # Triton's severities, followed by the date
# Tables, information, warnings, stack frames, and Triton's messages at every start without a GPU
# and at every normal end.
NOISE = re.compile(
    r"[+|]|[IW]\d+ |\d+# |E\d+ .*CudaDriverHelper has not been initialized"
    r"|E\d+ .*unable to create stream for \S+ CUDA driver version is insufficient"
    r"|Error: Failed to initialize NVML|Signal \((2|15)\) received"
)
# The message of Triton's Python backend on a full /dev/shm, which each of its processes writes
_IS_FULL = re.compile("shared memory .*No space left on device")
MORE_SHM = "mount -o remount,size=2G /dev/shm, or docker run --shm-size=2g"
FULL = f"/dev/shm is full or too small. Enlarge it: {MORE_SHM}"
MEANING = {
    signal.SIGBUS: f". {FULL}",
    signal.SIGKILL: ", by another process or because memory ran out",
}


def apply_settings() -> str:
    """Apply `SETTINGS` to a process that was started without; return why that is too late, or "".

    JupyterLab starts notebooks without them. glibc's settings can be changed later, by mallopt.
    OpenMP reads its environment when it is loaded.
    """
    started = Path("/proc/self/environ").read_text(errors="replace").split("\0")
    missing = {name for name, value in SETTINGS.items() if f"{name}={value}" not in started}
    unset = [f"{name}={value}" for name, value in OPENMP.items() if os.environ.get(name) != value]
    if unset and _OPENMP.search(supervisor.read(Path("/proc/self/maps"))):
        return f"OpenMP was loaded without {' '.join(unset)}. Set it before Jupyter starts."
    for name in missing:
        os.environ[name] = SETTINGS[name]
        if name in _MALLOPT and not ctypes.CDLL(None).mallopt(_MALLOPT[name], int(SETTINGS[name])):
            return f"malloc does not accept {name}={SETTINGS[name]}"
    return ""


@contextmanager
def supervised(
    command: Sequence[str],
    *,
    log: IO[bytes],
    env: Mapping[str, str] | None = None,
    shm_patterns: Sequence[str] = (),
    at_once: bool = False,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `command` under its supervisor, at most during the block; its output goes to `log`. At
    the end all its processes have ended, and the exit code is known.

    `shm_patterns` are of names under /dev/shm that the command may leave behind. With `at_once` the
    command is killed without a grace period.
    """
    options = [supervisor.AT_ONCE] if at_once else []
    program = [sys.executable, "-I", "-S", supervisor.__file__, *options, *shm_patterns]
    process = subprocess.Popen(
        [*program, "--", *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )
    assert process.stdin
    try:
        yield process
    finally:
        process.stdin.close()
        if process.wait() < 0:  # the supervisor itself was killed, so this process does its work
            supervisor.kill_session(process.pid, ORPHAN_SECONDS)
            supervisor.remove_shared_memory(shm_patterns)


def exit_reason(code: int) -> str:
    """Describe the end of a command with this exit code, as in "was killed by signal 9 (SIGKILL)".

    Codes above 128 and below 0 stand for signals.
    """
    number = -code if code < 0 else code - 128
    if number not in set(signal.Signals):
        return f"{'failed' if code else 'ended'} (exit code {code})"
    name = signal.Signals(number)
    return f"was killed by signal {number} ({name.name}){MEANING.get(name, '')}"


def end_of(process: "subprocess.Popen[bytes]") -> str:
    """Describe how a process ended; empty while it runs."""
    code = process.poll()
    return "" if code is None else f"it {exit_reason(code)}"


def last_lines(log: Path, count: int = 6) -> str:
    """Join the lines of a log that show why its command ended, at most `count`, for an error.

    Lines of severity "error" or "fatal" come first. A log of nothing but information and warnings
    is shown with its last two.
    """
    lines = list(filter(None, map(str.strip, log.read_text(errors="replace").splitlines())))
    informative = [line for line in lines if not NOISE.match(line)]
    errors = [line for line in informative if ERROR.match(line)][-count:]
    others = [line for line in informative if not ERROR.match(line)]
    chosen = errors + others[len(others) - (count - len(errors)) :] if informative else lines[-2:]
    return plain(" / ".join(chosen)) or "its log is empty"


def plain(message: str) -> str:
    """Return a message of Triton; for one that /dev/shm is full, return the cause and the fix."""
    return FULL if _IS_FULL.search(message) else message
