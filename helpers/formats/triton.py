"""A model of a Triton repository. The backend that its configuration names serves it unchanged. No
file is exported from it, and this process has no runtime for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helpers.formats import Build, Session, Source

FILE = "config.pbtxt"
SOURCES = ("triton",)
PRECISIONS: Mapping[str, tuple[str, ...]] = {}
RUNTIME: tuple[str, ...] = ()
DISPLAY_NAMES = ("Triton", "repository")


def make(source: Source, path: Path, build: Build) -> NoReturn:
    """Refuse: a repository has the model already."""
    raise ValueError("a model of a Triton repository is not exported or converted")


def load(path: Path, threads: int, device: str) -> Session:
    """Refuse: only the server runs it."""
    raise ValueError("a model of a Triton repository runs only in Triton")
