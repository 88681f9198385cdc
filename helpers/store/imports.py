"""Imports that leave out what takes long and is not needed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# jsonschema takes it along to check addresses, of which a notebook has none; it compiles grammars
# for a second
GRAMMARS = "rfc3987_syntax"


@contextmanager
def block_import(name: str) -> Iterator[None]:
    """Hide the package `name` from what the block imports, unless it has been imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
