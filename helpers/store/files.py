"""Files that are written whole or not at all, and one clear line when they cannot be."""

import errno
import os
import secrets
import shutil
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
def report_write_errors(path: Path) -> Iterator[None]:
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


def temporary_name(path: Path) -> Path:
    """Return a hidden name beside `path` for what will be renamed to it. What is made under this
    name has the permissions that the user's umask leaves, unlike what `tempfile` makes.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: a temporary file in its folder, then a rename."""
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        try:
            with temporary.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # a signal came after the rename, or it was not made
                os.unlink(temporary)
            raise
    return path


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """Link `target` to `source`, or copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)
