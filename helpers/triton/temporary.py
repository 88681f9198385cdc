"""Shared memory whose name says which process it belongs to, so that a later run can remove what a
killed one left behind.
"""

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from helpers.triton import guard, owner

PREFIX = "triton-notebooks-"
SHARED_MEMORY = Path("/dev/shm")


def new_name() -> str:
    """Return a name for something temporary of this process, for `remove_leftovers`."""
    return f"{PREFIX}{owner.token()}-{uuid.uuid4().hex[:8]}"


def remove_leftovers(folder: Path) -> None:
    """Remove what this user's ended processes left in `folder` under a `new_name`.

    A stub that outlived its server still uses its shared memory: it is killed first.
    """
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):
            holder = path.name.removeprefix(PREFIX).partition("-")[0]
            if path.lstat().st_uid != os.getuid() or not owner.is_dead(holder):
                continue
            for process in guard.shared_memory_users(servers=True).get(str(path), []):
                os.kill(process, signal.SIGKILL)
            path.unlink()
