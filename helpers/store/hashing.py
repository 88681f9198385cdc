"""Hash plain data and files by SHA-256, and detect quickly whether a user's files changed."""

import hashlib
import json
from functools import cache
from pathlib import Path

from helpers.errors import DataError
from helpers.store.paths import ROOT, display_path, from_root


def digest(value: object) -> str:
    """Hash plain data: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_digest(path: Path) -> str:
    """Return the SHA-256 of a file, cached until its size or time changes."""
    status = path.stat()
    return _known(path, status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _known(path: Path, *_: int) -> str:
    return file_digest(path)


@cache
def content_name(path: str) -> str:
    """Return the fingerprint of a user's files, or `path` if there are none; once per process."""
    try:
        return fingerprint(from_root(path))
    except DataError:
        return path


def fingerprint(path: Path) -> str:
    """Hash names, sizes and times of a user's files, not path or content; raise `DataError`."""
    try:
        if not path.exists():
            raise DataError(f"{display_path(path)}: no such file or folder")
        entries = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [(entry.relative_to(path), entry.stat()) for entry in entries if entry.is_file()]
        return digest([(str(name), each.st_size, each.st_mtime_ns) for name, each in files])
    except OSError as error:
        raise DataError(f"{display_path(path)}: cannot be read: {error}") from None


@cache
def package_files() -> dict[str, str]:
    """Return the SHA-256 of every source file of this package at the first call in this process."""
    return {
        str(path.relative_to(ROOT)): file_digest(path)
        for path in sorted((ROOT / "helpers").rglob("*"))
        if path.suffix in (".py", ".j2", ".css", ".js", ".yaml", ".json", ".txt", ".model")
    }
