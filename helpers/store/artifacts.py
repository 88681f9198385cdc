"""Finished folders: a manifest with the SHA-256 of every file, made whole or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, JsonValue, ValidationError

from helpers.errors import ArtifactError
from helpers.store.files import report_write_errors, temporary_name, write_atomic
from helpers.store.hashing import digest, file_digest
from helpers.store.lock import locked
from helpers.store.paths import display_path, outputs

MANIFEST = "manifest.json"
SHOWN_APART = ("operators", "calls")  # facts that the summary leaves out


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
    """A finished folder, the records of its files, and what its maker wrote down."""

    folder: Path
    files: Mapping[str, FileRecord]
    facts: Mapping[str, JsonValue]

    @property
    def sha256(self) -> str:
        """Return one hash over the names and hashes of all files."""
        return digest({name: file.sha256 for name, file in self.files.items()})

    @property
    def failure(self) -> str:
        """Return why nothing may be built on it; empty if it may."""
        return str(self.facts.get("failed") or self.facts.get("red") or "")  # "red" before 0.1.0

    @property
    def size_mb(self) -> float:
        """Return the size of all files together in megabytes (10^6 bytes)."""
        return sum(file.size for file in self.files.values()) / 1e6

    def summary(self) -> dict[str, JsonValue]:
        """Return what a reader should know of it."""
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


def _write_manifest(
    folder: Path, facts: Mapping[str, JsonValue], files: Mapping[str, FileRecord]
) -> None:
    manifest = Manifest(schema=1, facts=dict(facts), files=dict(files))
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=1, by_alias=True))


def find_artifact(folder: Path) -> Artifact | None:
    """Find the artifact in `folder` by its manifest; None if it has none, or not one of ours."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return Artifact(folder, manifest.files, manifest.facts)


def is_unchanged(artifact: Artifact) -> bool:
    """Return whether files have the size and time of when it was made, without reading them."""
    for name, file in artifact.files.items():
        try:
            status = (artifact.folder / name).stat()
        except OSError:
            return False
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            return False
    return True


def is_remote(artifact: Artifact) -> bool:
    """Return whether only the manifest is here: the files lie on the machine that made them."""
    return not any((artifact.folder / name).exists() for name in artifact.files)


def verify(artifact: Artifact) -> Artifact:
    """Hash every file again; raise `ArtifactError` on a change, and remove its manifest then."""
    for name, file in artifact.files.items():
        path = artifact.folder / name
        found = file_digest(path) if path.is_file() else "gone"
        if found != file.sha256:
            (artifact.folder / MANIFEST).unlink(missing_ok=True)
            raise ArtifactError(
                f"{display_path(path)} changed on disk: SHA-256 is {found[:12]} instead of "
                f"{file.sha256[:12]}. Run again to rebuild it."
            )
    return artifact


def mark_failed(artifact: Artifact, reason: str) -> None:
    """Write into the manifest that nothing may be built on this artifact, and why."""
    _write_manifest(artifact.folder, {**artifact.facts, "failed": reason}, artifact.files)


def remove_artifact(folder: Path) -> None:
    """Remove the artifact in `folder`; one that is removed in part counts as not there."""
    with report_write_errors(folder):
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


@contextmanager
def create_artifact(folder: Path) -> Iterator[tuple[Path, dict[str, JsonValue]]]:
    """Make an artifact whole or not at all: yields an empty temporary folder and the facts to fill.

    At the end of the block every file is hashed, the manifest written and the folder renamed to
    `folder`. What lies in the outputs folder is made under its lock: raises `WorkspaceError` if
    another run holds it.
    """
    facts: dict[str, JsonValue] = {}
    is_output = folder.is_relative_to(outputs())
    with locked(outputs()) if is_output else nullcontext(), report_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(folder)
        temporary.mkdir()
        try:
            yield temporary, facts
            paths = sorted(path for path in temporary.rglob("*") if path.is_file())
            files = {str(path.relative_to(temporary)): _record(path) for path in paths}
            _write_manifest(temporary, facts, files)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
