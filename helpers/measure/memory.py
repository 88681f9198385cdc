"""The peak memory of a server during a point, as Linux counts it for each process.

The kernel records the largest resident set of a process (`VmHWM` in /proc/<pid>/status). Writing
"5" to /proc/<pid>/clear_refs resets it to the present one (proc(5)). Nothing is sampled, so that no
peak is missed however short it is.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.measure.background import family

PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
RESET_PEAK = "5"


def watch_peak(servers: Sequence[int]) -> Callable[[], float | None]:
    """Reset the peaks of the processes `servers` and of all their descendants. The function
    returned gives the sum of the peaks since then in megabytes (10^6 bytes).

    The sum counts shared pages once per process, and adds peaks of different moments. It is an
    upper bound of the server's memory at any time. It is None, not measured, without a process and
    if one of the processes has ended. It is also None where the kernel or the user's rights forbid
    the reset, for example for another user's processes in a container.
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
