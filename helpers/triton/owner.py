"""Which process holds a container, a copied model or a temporary file, in a form that lets a later
run tell whether it is still alive.

    <boot id>.<pid namespace>.<process id>.<its start in clock ticks since boot>

A process id alone is soon given to another process, and means nothing in another container or on
another host.
"""

import os
from pathlib import Path


def _started(process: str) -> str:
    """Read when a process started (proc(5), field 22 of stat); empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _place() -> str:
    """Name this boot of this host, and the namespace in which its process ids are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"


def token() -> str:
    """Describe this process."""
    return f"{_place()}.{os.getpid()}.{_started(str(os.getpid()))}"


def is_dead(owner: str) -> bool:
    """Whether the owner has ended; False for one that cannot be seen from here."""
    rest, _, started = owner.rpartition(".")
    place, _, process = rest.rpartition(".")
    if not (started and process.isdigit() and place == _place()):
        return False
    return _started(process) != started
