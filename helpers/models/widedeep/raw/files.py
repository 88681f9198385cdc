"""The files of Kaggle's outbrain-click-prediction: their columns, read in blocks and checked."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models._tables import as_data_error, read_text_chunks
from helpers.models.widedeep.raw import find

# Each file, without `.csv` or `.csv.zip` -> rows of the public one, and its first line.
FILES = {
    "clicks_train": (87_141_731, "display_id,ad_id,clicked"),
    "events": (23_120_126, "display_id,uuid,document_id,timestamp,platform,geo_location"),
    "promoted_content": (559_583, "ad_id,document_id,campaign_id,advertiser_id"),
    "documents_meta": (2_999_334, "document_id,source_id,publisher_id,publish_time"),
    "documents_topics": (11_325_960, "document_id,topic_id,confidence_level"),
    "documents_entities": (5_537_552, "document_id,entity_id,confidence_level"),
    "documents_categories": (5_481_475, "document_id,category_id,confidence_level"),
}
TYPES: dict[str, type[pl.DataType]] = {"timestamp": pl.Int64, "confidence_level": pl.Float64}
TYPES |= {"clicked": pl.Int8, "platform": pl.Int8}  # those that are not named are pl.Int32
TYPES |= dict.fromkeys(("entity_id", "geo_location", "publish_time", "uuid"), pl.String)
OPTIONAL = {"platform", "geo_location", "source_id", "publisher_id", "publish_time"}
LARGEST = {"clicked": 1}  # values of a column; no number may be negative
BLOCK = 1 << 24  # bytes read at a time: about a million rows of clicks


class Files:
    """The seven files of a folder, each plain or zipped."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        paths = {name: find(folder, name) for name in FILES}
        self.paths = {name: path for name, path in paths.items() if path}
        self._progress = progress
        if missing := [f"{name}.csv" for name, path in paths.items() if path is None]:
            raise DataError(f"{folder} lacks {', '.join(missing)} (or zipped, .csv.zip)")

    def read(self, name: str) -> Iterator[pl.DataFrame]:
        """Read a file in order, `BLOCK` bytes at a time.

        Raises DataError for another header, a row of another form, a missing or impossible number,
        and a file without rows.
        """
        path, rows, (public, header) = self.paths[name], 0, FILES[name]
        texts = read_text_chunks(path, f"{name}.csv", BLOCK)
        if not (line := next(texts, b"")):
            raise DataError(f"{path} is empty")
        if (actual := line.decode("utf-8", "replace").strip()) != header:
            raise DataError(f"{path} starts with {actual[:80]!r}, expected {header!r}")
        for text in texts:
            if lines := text.rstrip(b"\r\n"):
                block = _parsed(path, lines, header.split(","), rows + 2)
                rows += len(block)
                yield block
                self._progress.say(f"{name}: {rows:,} rows (the public file has {public:,})")
        if not rows:
            raise DataError(f"{path} has no rows")


def refuse_repeated(table: pl.DataFrame, key: str, path: Path) -> None:
    """Raise DataError if two rows of `table`, read from `path`, have the same key."""
    if len(twice := table[key].filter(table[key].is_duplicated())):
        raise DataError(f"{path} is damaged: {key} {twice[0]} occurs twice")


def _parsed(path: Path, text: bytes, columns: list[str], first: int) -> pl.DataFrame:
    """Parse and check lines, of which the first is line `first` of the file, counted from 1."""
    commas = len(columns) - 1
    if text.count(b",") != commas * (text.count(b"\n") + 1):
        for line, row in enumerate(text.split(b"\n"), start=first):
            if (count := row.count(b",")) != commas:
                reason = f"line {line} has {count + 1} fields, expected {commas + 1}"
                raise DataError(f"{path} is damaged: {reason}")
    schema = {name: TYPES.get(name, pl.Int32) for name in columns}
    with as_data_error(path, f"is damaged, at lines from {first}"):
        block = pl.read_csv(
            text, has_header=False, schema=schema, null_values=["\\N"], quote_char=None
        )
    for name in columns:
        column = pl.col(name)
        wrong = pl.lit(False) if name in OPTIONAL else column.is_null()
        if schema[name] != pl.String:  # is not between: negative, too large or not finite
            wrong |= ~column.is_between(0, LARGEST.get(name, (1 << 63) - 1))
        if (row := block.select(wrong.arg_true().first()).item()) is not None:
            raise DataError(f"{path} is damaged: line {first + row} has no valid {name}")
    return block
