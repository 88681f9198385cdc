"""The process that owns a container, a copied model or shared memory, as a token.

With the token a later run detects whether the process is still alive, and removes its leftovers.

    <boot id>.<pid namespace>.<process id>.<its start in clock ticks since boot>

The system reuses a process id alone, and it is not valid in another container or on another host.
"""

import os
import re
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from helpers.triton import supervisor

PREFIX = "triton-notebooks-"  # of our servers' shared memory


def _started(process: str) -> str:
    """Read when a process started (proc(5), field 22 of stat); empty if there is none."""
    try:
        return supervisor.read(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _place() -> str:
    """Identify this boot of this host, and the namespace in which process ids are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"


def token() -> str:
    """Describe this process."""
    return f"{_place()}.{os.getpid()}.{_started(str(os.getpid()))}"


def is_stale(owner: str) -> bool:
    """Return whether the owner has ended; False for one that cannot be seen from here."""
    match = re.fullmatch(r"(.+)\.(\d+)\.(\d+)", owner)
    return bool(match and match[1] == _place() and match[3] != _started(match[2]))


def new_shm_prefix() -> str:
    """Return a prefix for the shared memory of a server, which names this process.

    First it removes what this user's ended processes left under such names. A stub that outlived
    its server still uses its shared memory: it is killed.
    """
    for path in Path("/dev/shm").glob(f"{PREFIX}*"):
        with suppress(OSError):
            holder = path.name.removeprefix(PREFIX).partition("-")[0]
            if path.lstat().st_uid == os.getuid() and is_stale(holder):
                for process in supervisor.shared_memory_users(servers=True).get(str(path), ()):
                    os.kill(process, signal.SIGKILL)
                path.unlink()
    return f"{PREFIX}{token()}-{uuid.uuid4().hex[:8]}"
