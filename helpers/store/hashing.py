"""SHA-256 of plain data and of files."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from helpers.store.paths import ROOT


def digest(value: Any) -> str:
    """Hash plain data: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Give the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def package_files() -> dict[str, str]:
    """SHA-256 of every source file of this package, as it was at the first call in this process:
    `resolve` makes that call, so that a file which is edited while a stage runs keeps its old hash.
    """
    return {
        str(path.relative_to(ROOT)): file_digest(path)
        for path in sorted((ROOT / "helpers").rglob("*.py"))
    }
