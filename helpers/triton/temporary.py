"""Temporary folders and shared memory whose names say which process they belong to, so that a
later run can remove what a killed one left behind.
"""

import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from helpers.errors import ServerError
from helpers.triton import guard, owner

PREFIX = "triton-notebooks-"
SHARED_MEMORY = Path("/dev/shm")
# Triton starts the Python backend's stubs by a line for bash that holds paths unquoted, and the
# dynamic linker expands dollars in LD_LIBRARY_PATH.
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


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
            if path.is_dir():
                shutil.rmtree(path)
                continue
            for process in guard.shared_memory_users(servers=True).get(str(path), []):
                os.kill(process, signal.SIGKILL)
            path.unlink()


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder whose path has no character that a shell interprets, and remove it
    at the end. Raises `ServerError` where there is no place for one.
    """
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", str(SHARED_MEMORY)):
        if PLAIN.fullmatch(base) and os.access(base, os.W_OK | os.X_OK):
            remove_leftovers(Path(base))
            with tempfile.TemporaryDirectory(prefix=f"{new_name()}-", dir=base) as folder:
                yield Path(folder)
            return
    raise ServerError(
        "Triton needs a temporary folder whose path has only letters, digits and _ . / -: set "
        "TMPDIR to one that you can write to"
    )
