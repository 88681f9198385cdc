"""Where results and artefacts lie, how they are written whole or not at all, and how a change on
disk is noticed.

    outputs/data/<key>/                               data sets, checkpoints, references
    outputs/<target>/artefacts/<key>/                 exports, conversions, repositories
    outputs/<target>/<model>/<experiment>/<stage>.*   executed notebook, page, result
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import ArtefactError, WorkspaceError

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS_VARIABLE = "TRITON_NOTEBOOKS_OUTPUTS"  # set by the batch command for its kernels
LOCKED_VARIABLE = "TRITON_NOTEBOOKS_LOCKED"  # set by the batch command: it holds the lock for them
MANIFEST = "manifest.json"
MENDABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)


def outputs() -> Path:
    """Give the outputs folder: the batch command's, else `outputs/` of the project."""
    return Path(os.environ.get(OUTPUTS_VARIABLE, ROOT / "outputs"))


def from_root(path: str) -> Path:
    """Resolve a user's path: relative ones are relative to the project's root, wherever the kernel
    was started.
    """
    return ROOT / Path(path).expanduser()


def shown(path: Path) -> str:
    """Spell a path for a page: relative to the project or the outputs folder where it lies
    there.
    """
    if path.is_relative_to(outputs()):
        return str(outputs().name / path.relative_to(outputs()))
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def digest(value: Any) -> str:
    """Hash plain data: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Give the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of writing to `path` that a user can mend into one line each."""
    try:
        yield
    except OSError as error:
        about = Path(error.filename or path).absolute()
        if not (path.is_relative_to(about.parent) or about.is_relative_to(path.parent)):
            raise  # it was something else, such as a data set that cannot be read
        if error.errno not in MENDABLE:
            raise
        raise WorkspaceError(
            f"cannot write {shown(path)}: {os.strerror(error.errno).lower()}"
        ) from error


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: a temporary file beside it, then a rename."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return path


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """Give `target` the content of `source` without a second copy on disk where the file system
    can.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)


@dataclass(frozen=True)
class Artefact:
    """A finished folder and its manifest: SHA-256 of every file, and what its maker wrote down."""

    folder: Path
    files: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """One hash over the names and hashes of all files."""
        return digest({name: file["sha256"] for name, file in self.files.items()})

    @property
    def size_mb(self) -> float:
        """Size of all files together in megabytes (10^6 bytes)."""
        return sum(int(file["size"]) for file in self.files.values()) / 1e6

    def shown(self) -> dict[str, Any]:
        """What a reader should know of it."""
        files = {name: f"{int(file['size']):,} bytes" for name, file in self.files.items()}
        return {
            "folder": shown(self.folder),
            **self.facts,
            "size_mb": self.size_mb,
            "files": files,
            "sha256": self.sha256,
        }


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def find(folder: Path) -> Artefact | None:
    """Find the finished artefact in `folder`, without looking at its content; None if there is
    none.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Artefact(folder, manifest["files"], manifest["facts"])


def is_unchanged(artefact: Artefact) -> bool:
    """Whether all files have the size and time they were finished with: quick, for deciding what to
    skip.
    """
    try:
        return all(
            _stamp(artefact.folder / name).items() <= dict(file).items()
            for name, file in artefact.files.items()
        )
    except OSError:
        return False


def verify(artefact: Artefact) -> Artefact:
    """Hash every file again; raise `ArtefactError` on a change, after which the artefact counts as
    not there.
    """
    for name, file in artefact.files.items():
        path = artefact.folder / name
        found = file_digest(path) if path.is_file() else "gone"
        if found != file["sha256"]:
            (artefact.folder / MANIFEST).unlink(missing_ok=True)
            raise ArtefactError(
                f"{shown(path)} changed after it was made: SHA-256 is {found[:12]}, was "
                f"{file['sha256'][:12]}; the next run makes it again"
            )
    return artefact


def mark_red(artefact: Artefact, reason: str) -> None:
    """Write into the manifest that nothing may be built on this artefact, and why."""
    facts = {**artefact.facts, "red": reason}
    manifest = {"schema": 1, "facts": facts, "files": artefact.files}
    write_atomic(artefact.folder / MANIFEST, json.dumps(manifest, indent=1))


@contextmanager
def making(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make an artefact whole or not at all: yields an empty temporary folder and the facts to fill.

    At the end of the block every file is hashed, the manifest written and the folder renamed to
    `folder`.
    """
    facts: dict[str, Any] = {}
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            yield temporary, facts
            paths = sorted(path for path in temporary.rglob("*") if path.is_file())
            files = {
                str(path.relative_to(temporary)): {**_stamp(path), "sha256": file_digest(path)}
                for path in paths
            }
            manifest = {"schema": 1, "facts": facts, "files": files}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
            os.chmod(temporary, 0o755)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


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
