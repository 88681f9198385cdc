"""Finished folders: a manifest with the SHA-256 of every file, made whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import ArtefactError
from helpers.store.files import explained, write_atomic
from helpers.store.hashing import digest, file_digest
from helpers.store.paths import shown

MANIFEST = "manifest.json"


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
