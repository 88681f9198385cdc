"""Who holds a container or a copied model, spelled so that a later run can tell whether they live.

    <pid namespace>.<process>.<its start in clock ticks since boot>

A process id alone is soon given to another process, and means nothing in another container.
"""

import os
from pathlib import Path


def _started(process: int) -> str:
    """Read when a process started (proc(5), field 22 of stat); empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def token() -> str:
    """Spell this process."""
    return f"{_namespace()}.{os.getpid()}.{_started(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Whether the owner has ended; of one that cannot be seen from here nothing is known: False."""
    namespace, _, process = owner.partition(".")
    number, _, started = process.partition(".")
    if not (started and number.isdigit() and namespace == str(_namespace())):
        return False
    return _started(int(number)) != started
