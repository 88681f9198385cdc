"""Reading the files of a data set: texts in blocks, and a file's fault in one line."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

import numpy as np

from helpers.errors import DataError, one_line

GENERATED, PREPARED = "generated.json", "prepared.json"  # files that mark where a set came from
LONGEST_LINE = 2**23  # bytes; a day of PEMS-SF has 1 MB


def origin(folder: Path) -> str:
    """Return where a data set came from, by the file that marks it."""
    if (folder / GENERATED).is_file():
        return "generated"
    return "prepared from the public files" if (folder / PREPARED).is_file() else "folder"


@contextmanager
def as_data_error(path: Path, problem: str = "cannot be read") -> Iterator[None]:
    """Turn whatever a damaged file makes Python, zipfile or polars raise into a DataError."""
    from polars.exceptions import PanicException, PolarsError  # a few damages make polars panic

    damage = (OSError, ValueError, EOFError, BadZipFile, zlib.error, NotImplementedError)
    try:
        yield
    except (*damage, PolarsError, PanicException) as error:
        raise DataError(f"{path} {problem}: {one_line(error, 150)}") from None


def check_values(holds: bool | np.bool_, path: Path, column: str, kind: str) -> None:
    """Raise DataError, unless `holds`, for a value that is not of its kind."""
    if not holds:
        raise DataError(f"{path} has a value in column {column} that is {kind}")


def read_text_chunks(path: Path, name: str, size: int = 1) -> Iterator[bytes]:
    """Yield the first line of a text, then whole lines: `size` bytes and the rest of the last line.

    `path` is the text itself or a zip file with `name` in any of its folders, which is read without
    unpacking it. Raises DataError if that is damaged, encrypted or lacks the text. For a line
    longer than LONGEST_LINE it raises before the whole line is in memory: a line may be a thousand
    times its zip file.
    """
    to_read = 1
    with as_data_error(path, "is damaged"), _opened(path, name) as file:
        while text := file.read(to_read):
            if begun := len(text) - 1 - text.rfind(b"\n"):  # bytes of a line that is not whole
                text += (rest := file.readline(LONGEST_LINE))
                if begun + len(rest) > LONGEST_LINE:
                    raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
            yield text
            to_read = size


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    if path.suffix != ".zip":
        with path.open("rb") as file:
            yield file
        return
    with ZipFile(path) as archive:
        members = [member for member in archive.infolist() if Path(member.filename).name == name]
        if not members:
            raise DataError(f"{path} lacks {name}")
        if members[0].flag_bits & 1:
            raise DataError(f"{path} is encrypted")
        with archive.open(members[0]) as file:
            yield file
