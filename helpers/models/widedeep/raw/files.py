"""The files of Kaggle's outbrain-click-prediction: their columns, read lazily and checked."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from helpers.display import Progress
from helpers.errors import DataError

if TYPE_CHECKING:
    from polars import DataFrame, Expr, LazyFrame, Schema

# Each file, without `.csv` or `.csv.zip` -> its columns in order, of type Int32 but for `TYPES`.
COLUMNS = {
    "clicks_train": ("display_id", "ad_id", "clicked"),
    "events": ("display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"),
    "promoted_content": ("ad_id", "document_id", "campaign_id", "advertiser_id"),
    "documents_meta": ("document_id", "source_id", "publisher_id", "publish_time"),
    "documents_topics": ("document_id", "topic_id", "confidence_level"),
    "documents_entities": ("document_id", "entity_id", "confidence_level"),
    "documents_categories": ("document_id", "category_id", "confidence_level"),
}
TYPES = dict.fromkeys(("entity_id", "geo_location", "publish_time", "uuid"), "String")
TYPES |= {
    "clicked": "Int8",
    "confidence_level": "Float64",
    "platform": "Int8",
    "timestamp": "Int64",
}
OPTIONAL = {"platform", "geo_location", "source_id", "publisher_id", "publish_time"}
LARGEST = {"clicked": 1}  # values of a column; no number may be negative
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
    """The seven files of a folder; a zipped one is read from its archive without unpacking it."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        found = {name: find(folder, name) for name in COLUMNS}
        self.paths = {name: path for name, path in found.items() if path}
        self._progress = progress
        if missing := [f"{name}.csv" for name, path in found.items() if path is None]:
            raise DataError(f"{folder} lacks {', '.join(missing)} (or zipped, .csv.zip)")

    def scan(self, name: str) -> "LazyFrame":
        """Read a file in order, `BLOCK` bytes at a time, when the result is collected.

        Collecting raises DataError for another header, a row of another form, a missing or
        impossible number, and a file without rows.
        """
        import polars as pl
        from polars.io.plugins import register_io_source

        types = [getattr(pl, TYPES.get(column, "Int32")) for column in COLUMNS[name]]
        schema = pl.Schema(zip(COLUMNS[name], types, strict=True))

        def source(
            columns: list[str] | None, predicate: "Expr | None", *_: int | None
        ) -> Iterator["DataFrame"]:
            for block in self._blocks(name, schema):
                rows = block if predicate is None else block.filter(predicate)
                yield rows.select(columns or pl.all())

        return register_io_source(source, schema=schema)

    def _blocks(self, name: str, schema: "Schema") -> Iterator["DataFrame"]:
        path, rows = self.paths[name], 0
        try:
            with _opened(path, f"{name}.csv") as file:
                _check_header(path, file.readline(1000), ",".join(schema))
                for text in _whole_lines(path, file):
                    block = _parsed(path, text, schema, rows + 2)
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


def refuse_repeated(table: "DataFrame", key: str, path: Path) -> None:
    """Raise DataError if two rows of `table`, read from `path`, have the same key."""
    if len(twice := table[key].filter(table[key].is_duplicated())):
        raise DataError(f"{path} is damaged: {key} {twice[0]} comes twice")


@contextmanager
def _opened(path: Path, member: str) -> Iterator[IO[bytes]]:
    if path.suffix == ".csv":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        found = [info for info in archive.infolist() if Path(info.filename).name == member]
        if not found:
            raise DataError(f"{path} lacks {member}")
        if found[0].flag_bits & 1:
            raise DataError(f"{path} is encrypted")
        with archive.open(found[0]) as file:
            yield file


def _check_header(path: Path, line: bytes, expected: str) -> None:
    if not line:
        raise DataError(f"{path} is empty")
    header = line.decode("utf-8", "replace").strip()
    if header != expected:
        raise DataError(f"{path} starts with {header[:80]!r}, expected {expected!r}")


def _whole_lines(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file, `BLOCK` bytes and the rest of the last line at a time."""
    while block := file.read(BLOCK):
        rest = file.readline(BLOCK)
        if len(rest) == BLOCK and not rest.endswith(b"\n"):
            raise DataError(f"{path} is damaged: {BLOCK} bytes without the end of a line")
        if text := (block + rest).rstrip(b"\r\n"):
            yield text


def _parsed(path: Path, text: bytes, schema: "Schema", first: int) -> "DataFrame":
    """Parse and check lines, of which the first is line `first` of the file, counted from 1."""
    import polars as pl

    commas = len(schema) - 1
    if text.count(b",") != commas * (text.count(b"\n") + 1):
        for line, row in enumerate(text.split(b"\n"), start=first):
            if (found := row.count(b",")) != commas:
                reason = f"line {line} has {found + 1} fields, expected {commas + 1}"
                raise DataError(f"{path} is damaged: {reason}")
    try:
        block = pl.read_csv(
            text, has_header=False, schema=schema, null_values=["\\N"], quote_char=None
        )
    except pl.exceptions.PolarsError as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise DataError(f"{path} is damaged, at lines from {first}: {reason[:150]}") from None
    invalid = block.select(_invalid(name).arg_true().first() for name in schema)
    for name, row in invalid.row(0, named=True).items():
        if row is not None:
            raise DataError(f"{path} is damaged: line {first + row} has no valid {name}")
    return block


def _invalid(name: str) -> "Expr":
    """Tell which values of a column are missing, negative, too large or not finite."""
    import polars as pl

    column = pl.col(name)
    invalid = pl.lit(False) if name in OPTIONAL else column.is_null()
    if TYPES.get(name) != "String":
        invalid |= ~column.is_between(0, LARGEST.get(name, (1 << 63) - 1))
    return invalid.alias(name)
