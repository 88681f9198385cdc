"""Change the process for a block: environment variables, a writable home, a hidden package."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.store.lock import temporary_folder

# Folders of IPython, Keras, Matplotlib and caches. Without them each process would warn and leave
# temporary folders behind
FOLDERS = ("IPYTHONDIR", "KERAS_HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME")
# jsonschema imports it to check addresses, which notebooks do not have. Compiling its grammars
# takes 1 s
GRAMMARS = "rfc3987_syntax"


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the block; restore all variables after it."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def writable_home() -> Iterator[None]:
    """Make packages write to a temporary folder during the block if the home is not writable."""
    home = os.path.expanduser("~")  # "~" if it is unknown
    if os.access(home, os.W_OK | os.X_OK):
        yield
        return
    with temporary_folder() as folder:
        folders = dict.fromkeys(FOLDERS, str(folder)) | dict(os.environ)
        if not os.path.isdir(home):  # else `~` is still that home in paths
            folders["HOME"] = str(folder)
        with environment(**folders):
            yield


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
