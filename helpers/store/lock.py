"""Lock an outputs folder for one run at a time, and remove the leftovers of killed runs."""

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

LOCKED_VARIABLE = "TRITON_NOTEBOOKS_LOCKED"  # set by the batch command, which holds the lock
LOCK = ".lock"
TEMPORARY = "triton-"  # the prefix of this package's temporary folders
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # the dynamic linker expands dollars, a shell more
LONGEST = 80  # characters of a parent folder: a socket's path may have 107
MOMENT_SECONDS = 1.0  # a notebook that starts or saves holds the lock for some milliseconds
FULL_BYTES = 16384  # a disk with no more free bytes is full
YOUNG_SECONDS = 60  # a younger folder may not be locked yet


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the outputs folder; raise `WorkspaceError` if another process holds it or it is a file.

    The lock ends with the process. The process, and kernels of the batch command, may enter again.
    """
    if os.environ.get(LOCKED_VARIABLE):
        yield
        return
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=MOMENT_SECONDS, is_singleton=True)
        try:
            held = lock.acquire()
        except Timeout:
            raise WorkspaceError(
                f"{display_path(folder)} is in use by another run. Wait, or use another --outputs."
            ) from None
    with held:
        yield


def require_unlocked(folder: Path) -> None:
    """Raise `WorkspaceError` if another process holds the folder, as a stage would fail later."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a temporary folder for the block; its lock shows `clear_leftovers` that it is in use.

    Its path suits a socket, and the shell by which Triton starts programs. Raises `WorkspaceError`
    if no folder can have one, or if its disk is full when the block fails.
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
    """Return whether the disk of a folder has free space."""
    return shutil.disk_usage(folder).free > FULL_BYTES


def _temporary_places() -> list[str]:
    return list(dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")))


def clear_leftovers(outputs: Path) -> None:
    """Remove the temporary folders of killed processes, and rename old folders of artifacts.

    The caller holds `outputs`. A run on another outputs folder holds a lock in each of its folders.
    """
    for path in outputs.glob("*/artefacts"):
        if not path.with_name("artifacts").exists():
            path.rename(path.with_name("artifacts"))
    for path in (*outputs.glob("data/.*"), *outputs.glob("*/artifacts/.*")):
        if path.is_dir() and re.fullmatch(r"\..+\.[a-z0-9_]{8}", path.name):
            shutil.rmtree(path, ignore_errors=True)
    bases = (Path(base) for base in _temporary_places())
    for path in (path for base in bases for path in base.glob(f"{TEMPORARY}*/{LOCK}")):
        with suppress(Timeout, OSError):  # it is in use, or another user's
            status = path.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > YOUNG_SECONDS:
                with FileLock(path, timeout=0):
                    shutil.rmtree(path.parent, ignore_errors=True)
