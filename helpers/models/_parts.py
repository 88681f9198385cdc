"""The preparation of raw files in parts, by many machines in parallel, each part once.

A step is a list of independent calls. Each call writes complete files or none, into a folder that
all machines see. So an interrupted preparation continues with the missing parts.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_output(path: Path) -> Iterator[Path | None]:
    """Yield a temporary path that becomes `path` after the block; None if `path` exists."""
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def joined(pieces: Sequence[Path], path: Path) -> None:
    """Join the pieces of a file, in order."""
    with atomic_output(path) as temporary:
        if temporary:
            with temporary.open("wb") as file:
                for piece in pieces:
                    with piece.open("rb") as source:
                        shutil.copyfileobj(source, file, 2**24)
