"""The lock on an outputs folder: one run at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.errors import WorkspaceError
from helpers.store.files import explained
from helpers.store.paths import shown

LOCKED_VARIABLE = "TRITON_NOTEBOOKS_LOCKED"  # set by the batch command: it holds the lock for them


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the outputs folder for one run; raise `WorkspaceError` if another run holds it or it is
    not a folder.
    """
    if os.environ.get(LOCKED_VARIABLE):
        yield
        return
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkspaceError(
                f"{shown(folder)} is in use by another run: wait for it, or give --outputs"
            ) from None
        yield
