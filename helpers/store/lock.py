"""The lock on an outputs folder: one run at a time, and what killed ones left is removed."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from helpers.errors import WorkspaceError
from helpers.store.files import explained
from helpers.store.paths import display_path

LOCKED_VARIABLE = "TRITON_NOTEBOOKS_LOCKED"  # set by the batch command: it holds the lock for them
LOCK = ".lock"
TEMPORARY = "triton-"  # how temporary folders of this package begin
YOUNG_SECONDS = 60  # its maker may not have locked such a folder yet


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the outputs folder; raise `WorkspaceError` if another process holds it or it is not a
    folder.

    The lock ends with the process. A process may enter again; the batch command's kernels may too.
    """
    if os.environ.get(LOCKED_VARIABLE):
        yield
        return
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
        try:
            lock.acquire()
        except Timeout:
            raise WorkspaceError(
                f"{display_path(folder)} is in use by another run: wait for it, or give --outputs"
            ) from None
    try:
        yield
    finally:
        lock.release()


def require_unlocked(folder: Path) -> None:
    """Raise `WorkspaceError` if another process holds the outputs folder now: a notebook asks first
    what would otherwise fail at its end.
    """
    if (folder / LOCK).exists():
        with locked(folder):
            pass


@contextmanager
def temporary_folder(parent: str | None = None) -> Iterator[Path]:
    """Give a folder in TMPDIR or `parent` until the end of the block. It is locked, so that
    `clear_leftovers` can tell it from one whose maker was killed.
    """
    with (
        tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=parent) as name,
        FileLock(Path(name) / LOCK),
    ):
        yield Path(name)


def clear_leftovers(outputs: Path) -> None:
    """Remove the temporary folders of processes that were killed; the caller holds `outputs`.

    Those of `making` lie in `outputs`: only who holds it makes one. Those in TMPDIR may belong to a
    run on another outputs folder, which then holds a lock in each.
    """
    for path in (*outputs.glob("data/.*"), *outputs.glob("*/artefacts/.*")):
        if path.is_dir() and re.fullmatch(r"\..+\.[a-z0-9_]{8}", path.name):
            shutil.rmtree(path, ignore_errors=True)
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/{LOCK}"):
        with suppress(Timeout, OSError):  # it is in use, or somebody else's
            status = path.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > YOUNG_SECONDS:
                with FileLock(path, timeout=0):
                    shutil.rmtree(path.parent, ignore_errors=True)
