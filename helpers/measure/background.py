"""Watch the load from other processes, and let one measurement run at a time on a machine."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event

import numpy as np
import psutil

from helpers.measure.rows import OTHERS_SHARE

QUIET_SECONDS = 0.3
SAMPLE_SECONDS = 0.1
RETRY_VARIABLE = "TRITON_NOTEBOOKS_RETRY_SECONDS"  # set by the user, in seconds
PATIENCE_SECONDS = 20.0
SPEED_SECONDS, SPEED_PARTS, SPEED_SIZE = 0.05, 5, 512


def _host_seconds() -> float:
    """Return the host's CPU seconds since it booted, with the time that other guests stole."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def family(numbers: Iterable[int]) -> set[psutil.Process]:
    """Find the processes with these numbers, as far as they run, and all that descend from them."""
    processes: set[psutil.Process] = set()
    for number in numbers:
        with suppress(psutil.Error):
            process = psutil.Process(number)
            processes |= {process, *process.children(recursive=True)}
    return processes


def _own_seconds(servers: Sequence[int]) -> float:
    """Return the CPU seconds of this process, `servers` and all descendants, ended ones too."""
    total = 0.0
    for process in family((os.getpid(), *servers)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def monitor_background(servers: Sequence[int] = ()) -> Callable[[], float]:
    """Begin to monitor the load from others: host time minus the time of this process, of `servers`
    and of all their descendants. The function returned gives the cores used since, on average.
    """

    def clocks() -> tuple[float, float]:
        return time.monotonic(), _host_seconds() - _own_seconds(servers)

    started, before = clocks()

    def others_cores() -> float:
        now, after = clocks()
        return max(0.0, (after - before) / (now - started))

    return others_cores


@contextmanager
def watch_others(servers: Sequence[int] = ()) -> Iterator[Callable[[int, int], float]]:
    """Sample the load from others during the block, as `monitor_background` has it. The function
    yielded gives the cores that they used between two times (ns since the epoch), on average.
    """
    times: list[int] = []
    seconds: list[float] = []
    ended = Event()

    def sample() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(SAMPLE_SECONDS) if times else False
            times.append(time.time_ns())
            seconds.append(_host_seconds() - _own_seconds(servers))

    def cores_between(start: int, end: int) -> float:
        before, after = np.interp([start, end], times, seconds)
        return max(0.0, float(after - before) * 1e9 / (end - start))

    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(sample)
        try:
            yield cores_between
        finally:
            ended.set()
            sampling.result()


def cores() -> int:
    """Return the host's logical cores. A quota does not count: others have the host's free ones."""
    return os.cpu_count() or 1


def machine_speed() -> float:
    """Measure the machine's speed: GFLOP/s of a fixed matrix multiplication on all cores, in the
    fastest part of a twentieth of a second. Only a disturbance of several seconds changes it.
    """
    left = np.full((SPEED_SIZE, SPEED_SIZE), 1.5, np.float32)
    right = left.T.copy()
    out = left @ right

    def part() -> float:
        calls, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < SPEED_SECONDS / SPEED_PARTS:
            np.matmul(left, right, out=out)
            calls += 1
        return 2e-9 * SPEED_SIZE**3 * calls / seconds

    return max(part() for _ in range(SPEED_PARTS))


def retry_seconds() -> float:
    """Return for how long a measurement may wait for a quiet machine, in seconds."""
    return float(os.environ.get(RETRY_VARIABLE) or PATIENCE_SECONDS)


def wait_until_quiet() -> float:
    """Wait until others are idle, for the retry budget at most; return the cores they still use."""
    deadline = time.monotonic() + retry_seconds()
    while True:
        others_cores = monitor_background()
        time.sleep(QUIET_SECONDS)
        if (remained := others_cores()) <= OTHERS_SHARE * cores() or time.monotonic() > deadline:
            return remained


@contextmanager
def exclusive_lock(folder: str | None = None) -> Iterator[None]:
    """Let one measurement run at a time on this host, for all users together: a second one waits.

    A `folder`, by default that of temporary files, is itself locked: a file there would be closed
    to other users.
    """
    locked = os.open(folder or tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        yield
    finally:
        os.close(locked)
