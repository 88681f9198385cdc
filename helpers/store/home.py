"""The environment variables of a block: what it sets, and a home that packages can write to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.store.lock import temporary_folder

# Where IPython, Keras, Matplotlib and what caches write: without them each process would warn, and
# leave temporary folders behind
FOLDERS = ("IPYTHONDIR", "KERAS_HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME")


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the block, which may change others; then restore all."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def writable_home() -> Iterator[None]:
    """Make packages write to a temporary folder during the block, unless the user's home can be
    written to. In paths `~` stays that home if there is one.
    """
    home = os.path.expanduser("~")  # "~" if nobody knows it
    if os.access(home, os.W_OK | os.X_OK):
        yield
        return
    with temporary_folder() as folder:
        own = {} if os.path.isdir(home) else {"HOME": str(folder)}
        with environment(**(dict.fromkeys(FOLDERS, str(folder)) | dict(os.environ) | own)):
            yield
