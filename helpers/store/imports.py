"""Skip imports that take long and are not needed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# jsonschema imports it to check addresses, which notebooks do not have. Compiling its grammars
# takes 1 s
GRAMMARS = "rfc3987_syntax"


@contextmanager
def block_import(name: str) -> Iterator[None]:
    """Hide the package `name` from the imports of the block, unless it is already imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
