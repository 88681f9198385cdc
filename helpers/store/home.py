"""A home for packages that write below it, where the user has none or may not write to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.store.lock import temporary_folder

# Where IPython, Keras, Matplotlib and what caches write: without them each process would warn, and
# leave temporary folders behind
FOLDERS = ("IPYTHONDIR", "KERAS_HOME", "MPLCONFIGDIR", "XDG_CACHE_HOME")


@contextmanager
def writable_home() -> Iterator[None]:
    """Have packages write to a temporary folder during the block, unless the user's home can be
    written to. In paths `~` stays that home if there is one.
    """
    home, before = os.path.expanduser("~"), dict(os.environ)  # "~" if nobody knows it
    if os.access(home, os.W_OK | os.X_OK):
        yield
        return
    with temporary_folder() as folder:
        os.environ.update(dict.fromkeys(FOLDERS, str(folder)) | before)
        if not os.path.isdir(home):
            os.environ["HOME"] = str(folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
