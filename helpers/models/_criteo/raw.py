"""The format of the Criteo 1TB click logs, and their conversion to a split-binary folder.

A day is a file of lines with 40 columns, separated by tabs. They are the label, 13 integers and 26
hashes of 8 hexadecimal digits; each but the label may be empty. The steps are those of NVIDIA's
Spark code:
- A number becomes log(x + 3), as in the code; the document has + 2. A missing number, or one of at
  most -3, becomes 0.
- A hash becomes an id from 1 on, by falling frequency and, where Spark leaves the order to chance,
  by rising hash. A missing hash, and one below the variant's threshold, becomes 0.
- The last day is not for training: its first half is the part `test`, the rest `validation`, which
  NVIDIA's feature_spec.yaml does not name either. Training samples keep their order.
NVIDIA counts the hashes of all 24 days, and so do the variants with its tables; the variants `own`
count the training days only. Nobody has tried whether the real 24 days, about a terabyte, give
NVIDIA's tables. `prepare_raw` checks that after it counted their hashes, before it writes samples.
"""

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from os import SEEK_END
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.display import Progress
from helpers.errors import DataError, one_line
from helpers.models import Config
from helpers.models._criteo import spec, tables
from helpers.models._criteo.data import Samples, write_part
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL

if TYPE_CHECKING:
    from polars import DataFrame, Series

DAY = re.compile(r"day_(\d+)(\.gz)?")
DAYS = 24  # of the public set
BATCH = 2**17  # lines that are in memory at a time
MERGE = 2**20  # hashes of a feature that are counted apart before they are merged
LONGEST = 2**20  # bytes between two line ends: a real line has some 250
NUMBERS = [f"I{column}" for column in range(NUMERICAL)]
HASHES = [f"C{column}" for column in range(CATEGORICAL)]
COLUMNS = ["label", *NUMBERS, *HASHES]
CELLS = (  # the content of each column, and its regular expression
    ("0 or 1", "[01]"),
    *[("an integer", "(-?[0-9]{1,18})?")] * NUMERICAL,
    *[("8 hexadecimal digits", "([0-9a-fA-F]{8})?")] * CATEGORICAL,
)
LINE = "^" + "\t".join(pattern for _, pattern in CELLS) + "$"


class Vocabulary:
    """The ids of a feature: from 1 on for its kept `hashes` in their order, 0 for all others."""

    def __init__(self, hashes: "Series") -> None:
        order = np.argsort(hashes.to_numpy())
        # the largest possible hash ends the list, so that each search returns an index in it
        self._hashes = np.append(hashes.to_numpy()[order], np.uint32(2**32 - 1))
        self._ids = np.append(order + 1, 0).astype(np.int32)
        self.rows = len(self._ids)  # of the feature's table

    def look_up(self, hashes: "Series") -> NDArray[np.int32]:
        """Return the ids of hashes, some of which may be missing."""
        values = hashes.fill_null(0).to_numpy()
        places = np.searchsorted(self._hashes, values)
        is_known = (self._hashes[places] == values) & hashes.is_not_null().to_numpy()
        return np.where(is_known, self._ids[places], np.int32(0))


def is_raw(path: Path) -> bool:
    """Return whether `path` is a folder with day files, and not a prepared one."""
    unprepared = path.is_dir() and not (path / spec.FILE).exists()
    return unprepared and any(DAY.fullmatch(file.name) for file in path.iterdir())


class Plan:
    """The days and hashes that a variant takes from a folder."""

    def __init__(self, source: Path, variant: str) -> None:
        self._source, self._variant = source, variant
        self._published = tables.TABLES.get(variant)
        self.days = days = days_of(source)  # the last is the test day
        if variant not in tables.THRESHOLDS or (self._published and len(days) != DAYS):
            raise self._misfit(f" with its {len(days)} days")
        self.counted = days if self._published else days[:-1]  # whose hashes count
        self.features = [HASHES[column] for column in tables.order(variant)]  # as the tables
        self.threshold = tables.THRESHOLDS[variant]  # how often a hash must occur
        origin = {"origin": "prepared from the public files"}  # for `feature_spec.yaml`
        self.facts = {**origin, "days": len(days), "threshold": self.threshold}
        used = f"{len(days) - 1} to train, the last to test; hashes from {self.threshold}"
        self.line = f"{source}: {len(days)} of the {DAYS} days, {used} occurrences on"

    def check_tables(self, rows: Sequence[int]) -> None:
        """Raise `DataError` if the tables have other sizes than the variant's."""
        published = self._published or rows
        for name, actual, expected in zip(self.features, rows, published, strict=True):
            if actual != expected:
                table = f"the table of {name} has {actual:,} rows instead of {expected:,}"
                raise self._misfit(f": {table}")

    def _misfit(self, fault: str) -> DataError:
        own = f"own-{self._variant}" if f"own-{self._variant}" in tables.OWN else "own"
        wrong = f"{self._source} does not give the tables of variant '{self._variant}'{fault}"
        return DataError(f"{wrong}. Use variant '{own}', which takes the folder's tables.")


def prepare_raw(config: Config, source: Path, folder: Path) -> None:
    """Write the parts `train`, `test` and `validation` of the days in `source` into `folder`.

    `source` holds `day_0`, `day_1` and so on, each plain or as `.gz`; the last of them is the test
    day. The variants with NVIDIA's tables need all 24, the others two at least. Memory is bound by
    the number of different hashes, at some 20 bytes each, not by the number of lines. Raises
    DataError for days that are missing or damaged, or do not give the variant's tables.
    """
    plan, progress = Plan(source, config.variant), Progress()
    print(plan.line)
    *train, last = plan.days
    counts = count_categories(plan.counted, plan.features, progress)
    dictionaries = {
        name: Vocabulary(frequent(counts.pop(name), plan.threshold)) for name in plan.features
    }
    rows = tuple(vocabulary.rows for vocabulary in dictionaries.values())
    plan.check_tables(rows)
    lines = count_lines(last)
    written = 0

    def samples(days: list[Path], start: int = 0, count: int | None = None) -> Iterator[Samples]:
        nonlocal written
        for day in days:
            for batch in samples_of(day, dictionaries, start, count):
                yield batch
                written += len(batch.clicks)
                progress.say(f"{written:,} lines written, of {day.name}")

    write_part(folder / "train", rows, samples(train))
    write_part(folder / "test", rows, samples([last], 0, lines // 2))
    write_part(folder / "validation", rows, samples([last], lines // 2))
    spec.write(folder, rows, plan.facts)


def count_lines(last: Path) -> int:
    """Count the lines of the last day; raise `DataError` if they are too few."""
    lines = sum(map(len, _read(last, [])))
    if lines < 2:
        raise DataError(f"{last} has {lines} lines, but the last day needs two at least")
    return lines


def samples_of(
    day: Path, dictionaries: Mapping[str, Vocabulary], start: int = 0, count: int | None = None
) -> Iterator[Samples]:
    """Read samples of a day, or `count` of them after `start`, in batches."""
    for frame in _read(day, COLUMNS, start, count):
        ids = [vocabulary.look_up(frame[name]) for name, vocabulary in dictionaries.items()]
        numbers = frame.select(NUMBERS).to_numpy()
        yield Samples(np.stack(ids, axis=1), numbers, frame["label"].to_numpy())


def days_of(source: Path) -> list[Path]:
    """Find the days from 0 on, two at least."""
    paths: dict[int, Path] = {}
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if matched := DAY.fullmatch(path.name):
            other = paths.setdefault(int(matched[1]), path)
            if other is not path:
                raise DataError(f"{source} has {other.name} and {path.name}. Keep one of them.")
    missing = [f"day_{day}" for day in range(max(paths, default=0)) if day not in paths]
    if missing:
        raise DataError(f"{source} lacks {', '.join(missing)}. Use consecutive days.")
    if len(paths) < 2:
        held = f"only {paths[0].name}" if paths else "no day files"
        raise DataError(f"{source} has {held}. Use day_0 and day_1 at least, of {DAYS} days.")
    return [paths[day] for day in sorted(paths)]


def count_categories(
    days: list[Path], features: list[str], progress: Progress
) -> dict[str, "DataFrame"]:
    """Count the hashes of each feature (`hash`, `len`, both UInt32).

    Batches are counted apart and merged now and then. If polars' streaming engine groups a whole
    day, it keeps some 8 bytes for every line of a feature with many different hashes.
    """
    import polars as pl

    nothing = pl.DataFrame(schema={"hash": pl.UInt32, "len": pl.UInt32})
    counts, lines = {name: [nothing] for name in features}, 0
    for day in days:
        for frame in _read(day, features):
            for name in features:
                column = frame.select(hash=name).drop_nulls()
                counts[name].append(column.group_by("hash").len())
                first, *rest = map(len, counts[name])
                if sum(rest) > max(MERGE, first):
                    counts[name] = [merged(counts[name])]
            lines += len(frame)
            progress.say(f"{lines:,} lines counted, of {day.name}")
    return {name: merged(counts.pop(name)) for name in features}


def merged(counts: Sequence["DataFrame"]) -> "DataFrame":
    """Add up counts."""
    import polars as pl

    return pl.concat(counts).group_by("hash").agg(pl.col("len").sum())


def frequent(counts: "DataFrame", threshold: int) -> "Series":
    """Return the hashes that occur `threshold` times or more, in the order of their ids."""
    rows = counts.filter(counts["len"] >= threshold)
    return rows.sort("len", "hash", descending=[True, False])["hash"]


def _read(
    path: Path, columns: list[str], start: int = 0, count: int | None = None
) -> Iterator["DataFrame"]:
    """Check the lines of a day, or `count` of them after `start`, and read `columns` in batches.

    A label is a boolean, a number its logarithm, a hash an integer or, where it is missing, null.
    """
    import polars as pl

    line, number = pl.col("line"), pl.col(NUMBERS).cast(pl.Int64, strict=False)
    cells = line.str.split_exact("\t", len(COLUMNS) - 1).struct.rename_fields(COLUMNS)
    lines = (
        pl.scan_lines(_with_line_ends(path), glob=False)
        .with_row_index("place", 1)
        .with_columns(cells.alias("cells"), wrong=pl.when(~line.str.contains(LINE)).then(line))
        .unnest("cells")
        .with_columns(
            pl.col("label") == "1",
            pl.when(number > -3).then((number + 3).log()).cast(pl.Float32).fill_null(0),
            pl.col(HASHES).str.to_integer(base=16, dtype=pl.UInt32, strict=False),
        )
        .select("place", "wrong", *columns)
        .slice(start, count)
    )
    rows = 0
    try:
        for frame in lines.collect_batches(chunk_size=BATCH):
            for line_number, wrong, *_ in frame.filter(pl.col("wrong").is_not_null()).iter_rows():
                raise _complaint(path, line_number, wrong)
            yield frame
            rows += len(frame)
    except (OSError, pl.exceptions.PolarsError) as error:
        if "invalid utf8" in str(error):
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                place = next(place for place, text in enumerate(file, 1) if not text.isascii())
            raise DataError(f"{path}: line {place} has bytes that are not text") from None
        raise DataError(f"{path} is damaged: {one_line(error, 120)}") from None
    if not rows:
        raise DataError(f"{path} is empty")


def _with_line_ends(path: Path) -> Path:
    """Raise DataError if a day begins or ends with a very long line, such as a download's zeros."""
    with path.open("rb") as file:  # polars would need hours and all of the memory for it
        for start in (0, max(0, file.seek(0, SEEK_END) - LONGEST)):
            file.seek(start)
            text = file.read(LONGEST)
            if len(text) == LONGEST and b"\n" not in text:
                raise DataError(f"{path} has {LONGEST:,} bytes without the end of a line")
    return path


def _complaint(path: Path, number: int, line: str) -> DataError:
    """Describe what is wrong with a line."""
    cells = line.split("\t")
    if len(cells) != len(CELLS):
        return DataError(f"{path}: line {number} has {len(cells)} columns instead of {len(CELLS)}")
    checked = enumerate(zip(cells, CELLS, strict=True), 1)
    column, cell, what = next((n, c, w) for n, (c, (w, p)) in checked if not re.fullmatch(p, c))
    cut = cell.encode()[:40]
    return DataError(f"{path}: line {number}, column {column} is {cut!r}, not {what}")
