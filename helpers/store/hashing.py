"""SHA-256 of plain data and of files."""

import hashlib
import json
from pathlib import Path
from typing import Any


def digest(value: Any) -> str:
    """Hash plain data: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Give the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
