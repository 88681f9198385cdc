"""Return the limits of this process: cores and memory, with those of cgroups, and open files.

`docker run --cpus 1.5 --memory 4g` sets such limits. Sources: the kernel's documents
admin-guide/cgroup-v2.rst and, for version 1, scheduler/sched-bwc.rst and cgroup-v1/memory.rst.
"""

import os
import re
import resource
from collections.abc import Iterator
from math import ceil, inf
from pathlib import Path

import psutil

from helpers.errors import WorkspaceError

OPEN_FILES, FEWEST_FILES = 1024, 256  # a usual limit, and the files that a run needs
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PROCESSORS = Path("/sys/devices/system/cpu")
MEMORY_FILES = (  # the limit, the memory in use, and the part of it that the kernel reclaims first
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def core_quota() -> float:
    """Return the number of cores whose time this process may use; infinite without a quota."""
    quotas = [inf]
    for folder in _folders("cpu"):
        version_1 = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
        time, period = _numbers(folder / "cpu.max") or _numbers(*version_1) or (-1, 1)
        quotas += [time / period] if time > 0 else []
    return min(quotas)


def usable_cores() -> int:
    """Count the cores that this process may use, by its affinity and its quota."""
    return max(1, ceil(min(len(os.sched_getaffinity(0)), core_quota())))


def physical_cores() -> int:
    """Count the physical cores that this process may use; hyper-threads do not speed up arithmetic.
    Source: the kernel's Documentation/ABI/stable/sysfs-devices-system-cpu.
    """
    usable = os.sched_getaffinity(0)
    siblings = (PROCESSORS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in usable)
    cores = {path.read_text() for path in siblings if path.exists()}
    return min(usable_cores(), len(cores) or len(usable))  # a sandbox may have no such files


def usable_memory() -> int:
    """Return the bytes of memory that this process may use, together with others in its cgroup."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())])


def free_memory() -> int:
    """Return the bytes of memory that are free for this process."""
    free = [max(0, limit - used) for limit, used in _memory_limits()]
    return min([psutil.virtual_memory().available, *free])


def require_open_files() -> None:
    """Raise the limit of open files to the usual one, or `WorkspaceError` if that is impossible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # negative: unlimited
    limit = min(OPEN_FILES, hard) if hard >= 0 else OPEN_FILES
    if 0 <= soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if 0 <= hard < FEWEST_FILES:
        raise WorkspaceError(
            f"A process may open only {hard} files, and a run needs {FEWEST_FILES}. Raise the "
            "limit: ulimit -n, or docker run --ulimit nofile=1024"
        )


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit of each cgroup, and its memory in use without reclaimable file caches."""
    for folder in _folders("memory"):
        for limit, used, files in MEMORY_FILES:
            if numbers := _numbers(folder / limit, folder / used):
                path = folder / "memory.stat"
                statistics = path.read_text() if path.exists() else ""  # a sandbox may have none
                match = re.search(rf"^{files} (\d+)$", statistics, re.MULTILINE)
                yield numbers[0], numbers[1] - int(match[1] if match else 0)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process' cgroups and of their parents, the root first.

    In a container they may have the paths of the host, of which only the root exists.
    """
    lines = OWN.read_text().splitlines() if OWN.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and controller not in controllers.split(","):
            continue
        parts = Path(path).parts[1:]
        for root in (GROUPS / controller,) if controllers else (GROUPS, GROUPS / "unified"):
            yield from (root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))


def _numbers(*paths: Path) -> list[int]:
    """Read the numbers in files; return none if a file does not exist or has "max"."""
    try:
        return [int(word) for path in paths for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
