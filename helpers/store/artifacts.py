"""Create artifacts atomically: folders with a manifest that has the SHA-256 of every file."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, JsonValue, ValidationError

from helpers.errors import ArtifactError
from helpers.store.files import report_write_errors, temporary_name, write_atomic
from helpers.store.hashing import digest, file_digest
from helpers.store.lock import locked
from helpers.store.paths import display_path, outputs

MANIFEST = "manifest.json"
SHOWN_APART = ("operators", "calls")  # metadata that the summary omits


class FileRecord(BaseModel, frozen=True):
    """A file of an artifact as it was when the artifact was finished."""

    size: int  # bytes
    mtime_ns: int
    sha256: str


class Manifest(BaseModel, frozen=True):
    """The content of `manifest.json`."""

    version: Literal[1] = Field(alias="schema")
    facts: dict[str, JsonValue] = {}
    files: dict[str, FileRecord] = {}


@dataclass(frozen=True)
class Artifact:
    """A finished folder, the records of its files, and its metadata."""

    folder: Path
    files: Mapping[str, FileRecord]
    facts: Mapping[str, JsonValue]

    @property
    def sha256(self) -> str:
        """Return one hash over the names and hashes of all files."""
        return digest({name: file.sha256 for name, file in self.files.items()})

    @property
    def failure(self) -> str:
        """Return why no stage may use it; empty if stages may."""
        return str(self.facts.get("failed") or self.facts.get("red") or "")  # "red" before 0.1.0

    @property
    def size_mb(self) -> float:
        """Return the size of all files together in megabytes (10^6 bytes)."""
        return sum(file.size for file in self.files.values()) / 1e6

    def summary(self) -> dict[str, JsonValue]:
        """Return its metadata, size and files for a reader."""
        return {
            "folder": display_path(self.folder),
            **{name: value for name, value in self.facts.items() if name not in SHOWN_APART},
            "size_mb": self.size_mb,
            "files": {name: f"{file.size:,} bytes" for name, file in self.files.items()},
            "sha256": self.sha256,
        }


def _record(path: Path) -> FileRecord:
    status = path.stat()
    return FileRecord(size=status.st_size, mtime_ns=status.st_mtime_ns, sha256=file_digest(path))


def _write_manifest(artifact: Artifact) -> None:
    manifest = Manifest(schema=1, facts=dict(artifact.facts), files=dict(artifact.files))
    write_atomic(artifact.folder / MANIFEST, manifest.model_dump_json(indent=1, by_alias=True))


def find_artifact(folder: Path) -> Artifact | None:
    """Return the artifact in `folder`; None if it has no valid manifest."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return Artifact(folder, manifest.files, manifest.facts)


def is_unchanged(artifact: Artifact) -> bool:
    """Return whether files have the size and time of the manifest, without reading them."""
    try:
        found = [(artifact.folder / name).stat() for name in artifact.files]
    except OSError:
        return False
    files = [(file.size, file.mtime_ns) for file in artifact.files.values()]
    return [(status.st_size, status.st_mtime_ns) for status in found] == files


def is_remote(artifact: Artifact) -> bool:
    """Return whether only the manifest is on this machine, and the files are on another."""
    return not any((artifact.folder / name).exists() for name in artifact.files)


def verify(artifact: Artifact) -> Artifact:
    """Hash every file again; on a change, remove the manifest and raise `ArtifactError`."""
    for name, file in artifact.files.items():
        path = artifact.folder / name
        actual = file_digest(path) if path.is_file() else "gone"
        if actual != file.sha256:
            (artifact.folder / MANIFEST).unlink(missing_ok=True)
            raise ArtifactError(
                f"{display_path(path)} changed on disk: SHA-256 is {actual[:12]} instead of "
                f"{file.sha256[:12]}. Run again to rebuild it."
            )
    return artifact


def mark_failed(artifact: Artifact, reason: str) -> None:
    """Write into the manifest why no stage may use this artifact."""
    _write_manifest(replace(artifact, facts={**artifact.facts, "failed": reason}))


def remove_artifact(folder: Path) -> None:
    """Remove the artifact in `folder`, its manifest first: without it there is no artifact."""
    with report_write_errors(folder):
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


@contextmanager
def create_artifact(folder: Path) -> Iterator[tuple[Path, dict[str, JsonValue]]]:
    """Create an artifact atomically; yield an empty temporary folder and the metadata to fill.

    The block's end hashes every file, writes the manifest and renames the folder to `folder`.
    Raises `WorkspaceError` if another run holds the outputs folder that the artifact is in.
    """
    metadata: dict[str, JsonValue] = {}
    is_output = folder.is_relative_to(outputs())
    with locked(outputs()) if is_output else nullcontext(), report_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(folder)
        temporary.mkdir()
        try:
            yield temporary, metadata
            paths = sorted(filter(Path.is_file, temporary.rglob("*")))
            files = {str(path.relative_to(temporary)): _record(path) for path in paths}
            _write_manifest(Artifact(temporary, files, metadata))
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
