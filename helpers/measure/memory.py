"""The peak memory of a server during a point, as Linux counts it for each process.

The kernel records the largest resident set of a process (`VmHWM` in /proc/<pid>/status). Writing
"5" to /proc/<pid>/clear_refs resets it to the present one (proc(5)). So no short peak is missed.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.machine import gpu
from helpers.measure.background import family

PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
RESET_PEAK = "5"


def watch_peak(servers: Sequence[int]) -> Callable[[], float | None]:
    """Reset the peaks of the processes `servers` and of all their descendants. The function
    returned gives the sum of the peaks since then in megabytes (10^6 bytes).

    It is an upper bound: shared pages count once per process, and peaks of different moments are
    added. It is None without a process, if one has ended, and where the kernel or the user's rights
    forbid the reset, for example for another user's processes in a container.
    """
    watched = family(servers)
    try:
        for process in watched:
            Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK)
    except OSError:
        return lambda: None

    def peak_mb() -> float | None:
        now = family(servers)
        if not watched or not watched <= now:
            return None
        try:
            texts = [Path(f"/proc/{one.pid}/status").read_text(errors="replace") for one in now]
        except OSError:  # one has just ended
            return None
        found = [PEAK.search(text) for text in texts]
        return sum(int(peak[1]) for peak in found if peak) * 1024 / 1e6 if all(found) else None

    return peak_mb


def watch_bounded(device: str, servers: Sequence[int]) -> Callable[[], float | None]:
    """Watch what `max_memory_mb` bounds: as `watch_peak`, or on a "gpu" the device memory of these
    processes by NVML. NVML has no peak, but the pools of runtimes do not shrink, so that the memory
    at the end is about the peak. It is None where the driver does not list the processes.
    """
    if device != "gpu":
        return watch_peak(servers)

    def used_mb() -> float | None:
        own = {process.pid for process in family(servers)}
        with gpu.opened() as opened:
            listed = opened.ask(lambda n, gpu: n.nvmlDeviceGetComputeRunningProcesses(gpu))
        listed = [] if isinstance(listed, str) else listed
        used = [process.usedGpuMemory for process in listed if process.pid in own]
        return None if not used or None in used else sum(used) / 1e6

    return used_mb
