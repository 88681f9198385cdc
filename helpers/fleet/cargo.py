"""Artifacts as they travel: whole folders with a manifest, in pieces, checked before they count.

A place is an artifact's folder below the outputs folder, such as data/bert-dataset-0123456789ab.
"""

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from helpers.errors import FleetError
from helpers.store import (
    MANIFEST,
    Artifact,
    explained,
    file_digest,
    find_artifact,
    is_unchanged,
    write_atomic,
)

PIECE = 2**24  # bytes
PLACE = re.compile(r"(data|[\w.-]+/artifacts)/[\w.-]+")
DATA = "data"  # the folder of data sets and checkpoints


def held(outputs: Path, places: Sequence[str]) -> list[str]:
    """Name the places whose artifact is here, with all its files as they were made."""
    found = ((place, find_artifact(_folder(outputs, place))) for place in places)
    return [place for place, artifact in found if artifact and is_unchanged(artifact)]


def listed(outputs: Path, place: str) -> tuple[bytes, dict[str, int], float | None]:
    """Give an artifact's manifest, the bytes of each of its files, and the seconds that it took to
    make if that is known.
    """
    folder = _folder(outputs, place)
    artifact = _required(folder, place)
    seconds = artifact.facts.get("fitted_seconds")
    sizes = {name: file.size for name, file in artifact.files.items()}
    known = float(seconds) if isinstance(seconds, int | float) else None
    return (folder / MANIFEST).read_bytes(), sizes, known


def read(outputs: Path, place: str, name: str, offset: int) -> bytes:
    """Read a piece of one of an artifact's files."""
    folder = _folder(outputs, place)
    if name not in _required(folder, place).files:
        raise FleetError(f"the artifact {place} has no file {name}")
    with (folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


def begin(outputs: Path, place: str) -> str:
    """Make the folder in which an artifact is gathered; give the token by which it goes on."""
    folder, token = _folder(outputs, place), uuid.uuid4().hex[:8]
    with explained(folder):
        _gathered(folder, token).mkdir(parents=True)
    return token


def write(outputs: Path, place: str, token: str, name: str, offset: int, piece: bytes) -> None:
    """Write a piece of a file."""
    path = _gathered(_folder(outputs, place), token) / _inside(name)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(piece)


def finish(outputs: Path, place: str, token: str, manifest: bytes) -> None:
    """Check every file by its SHA-256, and put the artifact in its place. Raises `FleetError`."""
    folder = _folder(outputs, place)
    gathered = _gathered(folder, token)
    write_atomic(gathered / MANIFEST, manifest)
    for name, record in _required(gathered, place).files.items():
        path = gathered / _inside(name)
        if not path.is_file() or file_digest(path) != record.sha256:
            abandon(outputs, place, token)
            raise FleetError(f"{place}/{name} was damaged in transfer. Run again.")
        os.utime(path, ns=(record.mtime_ns, record.mtime_ns))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(gathered, folder)


def abandon(outputs: Path, place: str, token: str) -> None:
    """Remove what was gathered."""
    shutil.rmtree(_gathered(_folder(outputs, place), token), ignore_errors=True)


def _folder(outputs: Path, place: str) -> Path:
    if not PLACE.fullmatch(place) or ".." in PurePosixPath(place).parts:
        raise FleetError(f"{place} is not the folder of an artifact")
    return outputs / place


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise FleetError(f"{name} is not a file of an artifact")
    return path


def _gathered(folder: Path, token: str) -> Path:
    """Name the folder as `making` names its own, so that what is left of it is cleared like it."""
    return folder.with_name(f".{folder.name}.{token}")


def _required(folder: Path, place: str) -> Artifact:
    artifact = find_artifact(folder)
    if artifact is None:
        raise FleetError(f"the artifact {place} is missing")
    return artifact
