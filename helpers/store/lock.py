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

from helpers.errors import DeploymentError, WorkspaceError
from helpers.store.files import report_write_errors
from helpers.store.paths import display_path

LOCKED_VARIABLE = "TRITON_NOTEBOOKS_LOCKED"  # set by the batch command: it holds the lock for them
LOCK = ".lock"
TEMPORARY = "triton-"  # how temporary folders of this package begin
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # the dynamic linker expands dollars, a shell more
LONGEST = 80  # characters of its parent: a socket's path may have 107
MOMENT_SECONDS = 1.0  # a notebook that begins or saves has the lock for some milliseconds
FULL_BYTES = 16384  # and less: what a disk has left that could take no more
YOUNG_SECONDS = 60  # its maker may not have locked such a folder yet


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the outputs folder; raise `WorkspaceError` if another process does, or it is no folder.

    The lock ends with the process. A process may enter again; the batch command's kernels may too.
    """
    if os.environ.get(LOCKED_VARIABLE):
        yield
        return
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=MOMENT_SECONDS, is_singleton=True)
        try:
            lock.acquire()
        except Timeout:
            raise WorkspaceError(
                f"{display_path(folder)} is in use by another run. Wait, or use another --outputs."
            ) from None
    try:
        yield
    finally:
        lock.release()


def require_unlocked(folder: Path) -> None:
    """Raise `WorkspaceError` if another process holds the folder: a stage would fail at its end."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder for the time of the block. Its path is short and has no character
    that a shell interprets: Triton starts programs by a shell, and a socket's path is limited.

    It is locked, so that `clear_leftovers` can tell it from one whose maker was killed. Raises
    `WorkspaceError` where there is no place for one, or its disk is full when the block fails.
    """
    for base in _temporary_places():
        is_fit = PLAIN.fullmatch(base) and len(base) < LONGEST
        if is_fit and os.access(base, os.W_OK | os.X_OK) and has_room(base):
            with (
                tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=base) as name,
                FileLock(Path(name) / LOCK),
            ):
                try:
                    yield Path(name)
                except Exception as error:
                    if isinstance(error, DeploymentError) or has_room(base):
                        raise
                    full = f"{base} is full. Free some space, or set TMPDIR to another disk."
                    raise WorkspaceError(full) from None
            return
    raise WorkspaceError(
        "No folder for temporary files was found. Set TMPDIR to a short path of letters, digits "
        "and _ . / -, with free space and write access."
    )


def has_room(folder: str | Path) -> bool:
    """Return whether more than nothing can be written to the disk of a folder."""
    return shutil.disk_usage(folder).free > FULL_BYTES


def _temporary_places() -> list[str]:
    return list(dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")))


def clear_leftovers(outputs: Path) -> None:
    """Remove the temporary folders of processes that were killed, and give folders of artifacts
    their name of today; the caller holds `outputs`.

    Those of `create_artifact` lie in `outputs`: only who holds it makes one. Those in TMPDIR may
    belong to a run on another outputs folder, which then holds a lock in each.
    """
    for path in outputs.glob("*/artefacts"):
        if not path.with_name("artifacts").exists():
            path.rename(path.with_name("artifacts"))
    for path in (*outputs.glob("data/.*"), *outputs.glob("*/artifacts/.*")):
        if path.is_dir() and re.fullmatch(r"\..+\.[a-z0-9_]{8}", path.name):
            shutil.rmtree(path, ignore_errors=True)
    places = (Path(each) for each in _temporary_places())
    for path in (path for place in places for path in place.glob(f"{TEMPORARY}*/{LOCK}")):
        with suppress(Timeout, OSError):  # it is in use, or somebody else's
            status = path.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > YOUNG_SECONDS:
                with FileLock(path, timeout=0):
                    shutil.rmtree(path.parent, ignore_errors=True)
