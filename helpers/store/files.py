"""Files that are written whole or not at all, and one clear line when they cannot be."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from helpers.errors import WorkspaceError
from helpers.store.paths import display_path

USER_FIXABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of writing to `path` that a user can fix into one line each."""
    try:
        yield
    except OSError as error:
        about = Path(error.filename or path).absolute()
        ours = path.is_relative_to(about.parent) or about.is_relative_to(path.parent)
        if not ours or error.errno not in USER_FIXABLE:
            raise  # such as a data set that cannot be read
        reason = os.strerror(error.errno).lower()
        raise WorkspaceError(f"cannot write {display_path(path)}: {reason}") from error


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: a temporary file in its folder, then a rename."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):  # a signal came after the rename
                os.unlink(temporary)
            raise
    return path


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """Give `target` the content of `source`, as a hard link where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)
