"""The peak memory of a server during a point, as Linux counts it for each process.

The kernel keeps the largest resident set of a process (`VmHWM` in /proc/<pid>/status) and sets it
back to the present one when "5" is written to /proc/<pid>/clear_refs (proc(5)). Nothing is sampled,
so that no peak is missed however short it is.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.measure.background import family

PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
RESET_PEAK = "5"


def watch_peak(servers: Sequence[int]) -> Callable[[], float | None]:
    """Set back the peaks of the processes `servers` and of all that descend from them. The function
    returned gives the sum of the peaks since then in megabytes (10^6 bytes).

    The sum counts pages that processes share once for each of them, and peaks of different moments:
    it is an upper bound of what the server took at any time. It is None, not measured, without a
    process, where the kernel or the user's rights do not allow to set a peak back (another user's
    processes, in a container for one), and if one of the processes has ended.
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
        peaks = [_peak_kib(process.pid) for process in now]
        return None if None in peaks else sum(filter(None, peaks)) * 1024 / 1e6

    return peak_mb


def _peak_kib(process: int) -> int | None:
    """Read the largest resident set of a process; None if it has ended."""
    try:
        match = PEAK.search(Path(f"/proc/{process}/status").read_text(errors="replace"))
    except OSError:
        return None
    return int(match[1]) if match else None
