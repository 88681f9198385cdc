"""Set environment variables for a block, and a home folder that packages can write to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.store.lock import temporary_folder

# Folders of IPython, Keras, Matplotlib and caches. Without them each process would warn and leave
# temporary folders behind
FOLDERS = ("IPYTHONDIR", "KERAS_HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME")


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
    """Make packages write to a temporary folder during the block if the home is not writable.

    In paths `~` is still that home if it exists.
    """
    home = os.path.expanduser("~")  # "~" if it is unknown
    if os.access(home, os.W_OK | os.X_OK):
        yield
        return
    with temporary_folder() as folder:
        temporary_home = {} if os.path.isdir(home) else {"HOME": str(folder)}
        with environment(
            **(dict.fromkeys(FOLDERS, str(folder)) | dict(os.environ) | temporary_home)
        ):
            yield
