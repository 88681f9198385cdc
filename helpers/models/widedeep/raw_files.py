"""The files of Kaggle's outbrain-click-prediction: their columns, read block by block."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from helpers.display import Progress
from helpers.errors import DataError

if TYPE_CHECKING:
    from polars import DataFrame

# Each file, without `.csv` or `.csv.zip` -> its columns in order, with the names of their types.
COLUMNS = {
    "clicks_train": {"display_id": "Int32", "ad_id": "Int32", "clicked": "Int8"},
    "events": {
        "display_id": "Int32",
        "uuid": "String",
        "document_id": "Int32",
        "timestamp": "Int64",
        "platform": "Int8",
        "geo_location": "String",
    },
    "promoted_content": {
        "ad_id": "Int32",
        "document_id": "Int32",
        "campaign_id": "Int32",
        "advertiser_id": "Int32",
    },
    "documents_meta": {
        "document_id": "Int32",
        "source_id": "Int32",
        "publisher_id": "Int32",
        "publish_time": "String",
    },
    "documents_topics": {
        "document_id": "Int32",
        "topic_id": "Int32",
        "confidence_level": "Float64",
    },
    "documents_entities": {
        "document_id": "Int32",
        "entity_id": "String",
        "confidence_level": "Float64",
    },
    "documents_categories": {
        "document_id": "Int32",
        "category_id": "Int32",
        "confidence_level": "Float64",
    },
}
MAY_LACK = {"platform", "geo_location", "source_id", "publisher_id", "publish_time"}
NOTHING = "\\N"  # what stands for a missing value, besides an empty field
PUBLIC_ROWS = {
    "clicks_train": 87_141_731,
    "events": 23_120_126,
    "promoted_content": 559_583,
    "documents_meta": 2_999_334,
    "documents_topics": 11_325_960,
    "documents_entities": 5_537_552,
    "documents_categories": 5_481_475,
}
BLOCK = 1 << 24  # bytes read at a time: about a million rows of clicks


class Files:
    """The seven files of a folder; one that is zipped is read out of its archive as a stream."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._paths, self._progress = {name: find(folder, name) for name in COLUMNS}, progress
        missing = [f"{name}.csv" for name, path in self._paths.items() if path is None]
        if missing:
            raise DataError(f"{folder} lacks {', '.join(missing)} (or zipped, .csv.zip)")

    @property
    def names(self) -> list[str]:
        return [path.name for path in self._paths.values() if path]

    def path(self, name: str) -> Path:
        """Give the path of a file that is known to be there."""
        path = self._paths[name]
        assert path is not None
        return path

    def table(self, name: str) -> "DataFrame":
        """Read a whole file."""
        import polars as pl

        return pl.concat(list(self.blocks(name)), rechunk=True)

    def blocks(self, name: str) -> Iterator["DataFrame"]:
        """Read a file as tables of some `BLOCK` bytes, in order.

        Raises DataError for another header, a row of another form, a missing or negative number,
        and a file without rows.
        """
        path, columns, rows = self.path(name), COLUMNS[name], 0
        try:
            with _opened(path, f"{name}.csv") as file:
                _check_header(path, file.readline(1000), list(columns))
                for text in _whole_lines(path, file):
                    block = _parsed(path, text, columns, rows + 2)
                    rows += len(block)
                    yield block
                    public = f"{rows:,} rows (the public file has {PUBLIC_ROWS[name]:,})"
                    self._progress.say(f"{name}: {public}")
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DataError(f"{path} is damaged: {error}") from None
        if not rows:
            raise DataError(f"{path} has no rows")


def find(folder: Path, name: str) -> Path | None:
    """Give the path of a file in `folder`, plain or zipped."""
    paths = [folder / f"{name}.csv", folder / f"{name}.csv.zip"]
    return next((path for path in paths if path.is_file()), None)


@contextmanager
def _opened(path: Path, member: str) -> Iterator[IO[bytes]]:
    if path.suffix == ".csv":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if Path(name).name == member]
        if not found:
            raise DataError(f"{path} lacks {member}")
        if archive.getinfo(found[0]).flag_bits & 1:
            raise DataError(f"{path} is encrypted")
        with archive.open(found[0]) as file:
            yield file


def _check_header(path: Path, line: bytes, columns: list[str]) -> None:
    if not line:
        raise DataError(f"{path} is empty")
    header = line.decode("utf-8", "replace").strip()
    if header != ",".join(columns):
        raise DataError(f"{path} starts with {header[:80]!r}, expected {','.join(columns)!r}")


def _whole_lines(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file, cut after the last line end of every `BLOCK` bytes."""
    rest = b""
    while block := file.read(BLOCK):
        end = block.rfind(b"\n") + 1
        if not end and len(block) == BLOCK:
            raise DataError(f"{path} is damaged: {BLOCK} bytes without the end of a line")
        text = (rest + block[:end]).rstrip(b"\r\n")
        rest = block[end:] if end else rest + block
        if text and end:
            yield text
    if rest := rest.rstrip(b"\r\n"):
        yield rest


def _parsed(path: Path, text: bytes, columns: dict[str, str], first: int) -> "DataFrame":
    """Read lines, of which the first is line `first` of the file, counted from 1."""
    import polars as pl

    commas = len(columns) - 1
    if text.count(b",") != commas * (text.count(b"\n") + 1):
        _refuse_ragged(path, text, commas, first)
    types = {name: getattr(pl, kind) for name, kind in columns.items()}
    try:
        block = pl.read_csv(
            text, has_header=False, schema=types, null_values=[NOTHING], quote_char=None
        )
    except pl.exceptions.PolarsError as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise DataError(f"{path} is damaged, at lines from {first}: {reason[:150]}") from None
    for name, kind in columns.items():
        column = block[name]
        wrong = column.is_null() if name not in MAY_LACK else column.is_null() & False
        if kind.startswith("Int"):
            wrong |= (column < 0).fill_null(False)
        if kind.startswith("Float"):
            wrong |= (~column.is_finite() | (column < 0)).fill_null(False)
        if wrong.any():
            line = first + int(wrong.arg_max() or 0)
            raise DataError(f"{path} is damaged: line {line} has no valid {name}")
    return block


def _refuse_ragged(path: Path, text: bytes, commas: int, first: int) -> None:
    for line, row in enumerate(text.split(b"\n"), start=first):
        if (found := row.count(b",")) != commas:
            raise DataError(
                f"{path} is damaged: line {line} has {found + 1} fields, expected {commas + 1}"
            )
