"""Write files atomically, with an error of one line if that fails."""

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
    """Raise `WorkspaceError` with one line for errors of writing to `path` that a user can fix."""
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
    """Return a hidden name next to `path`; what has it gets the umask's mode, unlike `tempfile`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file atomically: write a temporary file in its folder, then rename it."""
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        try:
            with temporary.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # a signal came after the rename, or before the file existed
                os.unlink(temporary)
            raise
    return path


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """Hard-link `target` to `source`; copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)
