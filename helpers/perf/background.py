"""Whether the machine is ours while we measure: processor time that others take, and one
measurement at a time on a host.
"""

import fcntl
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.perf.statistics import OTHERS_CORES

QUIET_SECONDS = 0.3
PATIENCE_SECONDS = 20.0


def _host_seconds() -> float:
    """Processor seconds that the host spent on anything since it booted, time stolen by other
    guests included.
    """
    times = psutil.cpu_times()
    return sum(
        getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")
    )


def _own_seconds(servers: Sequence[int]) -> float:
    """Processor seconds of this process, of `servers` and of the descendants of all, the ended ones
    included.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    family = psutil.Process().children(recursive=True)
    for number in servers:
        with suppress(psutil.Error):
            server = psutil.Process(number)
            family += [server, *server.children(recursive=True)]
    for each in dict.fromkeys(family):
        with suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass
class Load:
    """Processor time that processes other than ours took, in cores; filled when the block that it
    watches ends.
    """

    others_cores: float = float("nan")


@contextmanager
def watched(servers: Sequence[int] = ()) -> Iterator[Load]:
    """Watch a block for load from others: host time minus the time of this process, of the
    processes `servers`, which serve us, and of all their descendants.
    """
    load = Load()
    host, own, started = _host_seconds(), _own_seconds(servers), time.monotonic()
    yield load
    elapsed = time.monotonic() - started
    others = (_host_seconds() - host) - (_own_seconds(servers) - own)
    load.others_cores = max(0.0, others / elapsed)


def wait_until_quiet() -> float:
    """Wait, for a while, until others leave the machine alone; return the load that remained, in
    cores.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with watched() as load:
            time.sleep(QUIET_SECONDS)
        if load.others_cores <= OTHERS_CORES or time.monotonic() > deadline:
            return load.others_cores


@contextmanager
def alone() -> Iterator[None]:
    """Let one measurement run at a time on this host; a second one waits here for its turn."""
    path = Path(tempfile.gettempdir()) / f"triton-notebooks-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
