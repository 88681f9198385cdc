"""What the Criteo 1TB click logs look like, and how they become a split-binary folder.

A day is a file of lines of 40 columns with tabs between: the label, 13 integers and 26 hashes of 8
hexadecimal digits; each but the label may be empty. The steps are those of NVIDIA's Spark code:
- a number is log(x + 3), as the code has it, where the document says + 2; what has none, because x
  is missing or at most -3, is 0, taken after the logarithm;
- a hash becomes a number from 1 on, by falling frequency and, where the original leaves it to
  chance, by rising hash; a missing one, and one rarer than the variant's threshold, is 0;
- the last day is not for training: its first half is the part `test`, the rest `validation`, which
  the original's feature_spec.yaml does not name either.
Other than there, the test day does not count for frequencies, and training samples keep their
order.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models._criteo import spec
from helpers.models._criteo.data import Samples, writing
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL

if TYPE_CHECKING:
    from polars import DataFrame

DAY = re.compile(r"day_(\d+)(\.gz)?")
DAYS = 24  # of the public set
THRESHOLDS = {"T3": 3, "T0": 1}  # occurrences that keep a hash, by variant
THRESHOLD = 15  # for the others
BLOCK = 2**25  # bytes of text that are parsed at a time: about 130,000 lines
MERGE = 2**20  # hashes of a feature that are counted apart before they are merged
NUMBERS = [f"I{place}" for place in range(NUMERICAL)]
HASHES = [f"C{place}" for place in range(CATEGORICAL)]
LABEL = ("0 or 1", re.compile(rb"[01]"))
INTEGER = ("an integer", re.compile(rb"(-?\d{1,18})?"))
HASH = ("8 hexadecimal digits", re.compile(rb"([0-9a-fA-F]{8})?"))
CELLS = (LABEL, *[INTEGER] * NUMERICAL, *[HASH] * CATEGORICAL)
COLUMNS = len(CELLS)


@dataclass(frozen=True)
class Dictionary:
    """The hashes of a feature that are kept."""

    hashes: NDArray[np.uint32]  # rising
    numbers: NDArray[np.int32]  # of each, from 1

    def look_up(self, hashes: NDArray[np.uint32], missing: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Give each hash its number, and 0 to one that is missing or not kept."""
        if not len(self.hashes):
            return np.zeros(len(hashes), dtype=np.int32)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        kept = (self.hashes[places] == hashes) & ~missing
        return np.where(kept, self.numbers[places], np.int32(0))


def holds_raw(path: Path) -> bool:
    """Tell whether `path` is a folder with day files, and not a prepared one."""
    if not path.is_dir() or (path / spec.FILE).exists():
        return False
    return any(DAY.fullmatch(each.name) for each in path.iterdir())


def prepare_raw(config: Any, source: Path, folder: Path) -> None:
    """Write the parts `train`, `test` and `validation` of the days in `source` into `folder`, an
    empty folder.

    `source` holds `day_0`, `day_1` and so on, each plain or as `.gz`; the last of them is the test
    day, whether all 24 are there or fewer. Memory is bound by the number of different hashes, at
    some 20 bytes each, not by the number of lines. Prints a line every few seconds. Raises
    DataError for days that are missing or damaged.
    """
    *train, last = _days(source)
    threshold = THRESHOLDS.get(config.variant, THRESHOLD)
    used = f"{len(train)} to train, the last to test; hashes from {threshold} occurrences on"
    print(f"{source}: {len(train) + 1} of the {DAYS} days, {used}")
    dictionaries = _dictionaries(train, threshold, progress := Progress())
    tables = tuple(len(dictionary.hashes) + 1 for dictionary in dictionaries)
    lines = sum(block.count(b"\n") for _, block in _blocks(last))
    if lines < 2:
        raise DataError(f"{last} has {lines} lines, and the last day gives two parts")
    written = 0
    with (
        writing(folder / "train", tables) as append_train,
        writing(folder / "test", tables) as append_test,
        writing(folder / "validation", tables) as append_validation,
    ):
        for day in (*train, last):
            rest = lines // 2  # of the test part
            for frame in _frames(day):
                samples = _samples(frame, dictionaries)
                if day is last:
                    append_test(samples.of(slice(rest)))
                    append_validation(samples.of(slice(rest, None)))
                    rest = max(0, rest - len(frame))
                else:
                    append_train(samples)
                written += len(frame)
                progress.say(f"{written:,} lines written, of {day.name}")
    metadata = {"days": len(train) + 1, "threshold": threshold}
    spec.write(folder, tables, {"origin": "prepared from the public files", **metadata})


def _days(source: Path) -> list[Path]:
    """Find the days from 0 on, two at least."""
    found: dict[int, Path] = {}
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if matched := DAY.fullmatch(path.name):
            other = found.setdefault(int(matched[1]), path)
            if other is not path:
                raise DataError(f"{source} holds {other.name} and {path.name}: leave one of them")
    missing = [f"day_{day}" for day in range(max(found, default=0)) if day not in found]
    if missing:
        raise DataError(f"{source} lacks {', '.join(missing)}: days have to follow one another")
    if len(found) < 2:
        held = f"only {found[0].name}" if found else "no day files"
        raise DataError(f"{source} holds {held}: expected day_0 and day_1 at least, of {DAYS} days")
    return [found[day] for day in sorted(found)]


def _dictionaries(days: list[Path], threshold: int, progress: Progress) -> list[Dictionary]:
    """Count the hashes of each feature, and number those that come `threshold` times or more."""
    import polars as pl

    def merged(name: str) -> "DataFrame":
        return pl.concat(counts[name]).group_by("hash").agg(pl.col("len").sum())

    nothing = pl.DataFrame(schema={"hash": pl.UInt32, "len": pl.UInt32})
    counts, lines = {name: [nothing] for name in HASHES}, 0
    for day in days:
        for frame in _frames(day):
            for name in HASHES:
                column = frame.select(hash=name).drop_nulls()
                counts[name].append(column.group_by("hash").len())
                first, *rest = map(len, counts[name])
                if sum(rest) > max(MERGE, first):
                    counts[name] = [merged(name)]
            lines += len(frame)
            progress.say(f"{lines:,} lines counted, of {day.name}")
    made = []
    for name in HASHES:
        kept = merged(name).filter(pl.col("len") >= threshold)
        del counts[name]
        kept = kept.sort("len", "hash", descending=[True, False])
        kept = kept.with_row_index("number", 1).cast({"number": pl.Int32}).sort("hash")
        made.append(Dictionary(kept["hash"].to_numpy(), kept["number"].to_numpy()))
    return made


def _samples(frame: "DataFrame", dictionaries: list[Dictionary]) -> Samples:
    """Turn parsed lines into samples."""
    numbers = frame.select(NUMBERS).to_numpy().astype(np.float64)  # what is missing is NaN
    numerical = np.zeros(numbers.shape, dtype=np.float32)
    np.log(numbers + 3, out=numerical, where=numbers > -3, casting="same_kind")
    categorical = np.empty((len(frame), CATEGORICAL), dtype=np.int32)
    for place, (name, dictionary) in enumerate(zip(HASHES, dictionaries, strict=True)):
        missing = frame[name].is_null().to_numpy()
        categorical[:, place] = dictionary.look_up(frame[name].fill_null(0).to_numpy(), missing)
    return Samples(categorical, numerical, frame["label"].to_numpy().astype(np.bool_))


def _frames(path: Path) -> Iterator["DataFrame"]:
    """Parse a day, block by block: label, 13 numbers and 26 hashes, null where there is none."""
    import polars as pl

    schema: Any = dict.fromkeys(["label", *NUMBERS], pl.Int64) | dict.fromkeys(HASHES, pl.String)
    wrong = (~pl.col("label").is_in([0, 1])) | pl.col("label").is_null()
    for text in map(pl.col, HASHES):
        wrong |= (text.str.len_bytes() != 8) | text.str.starts_with("+")
    for first, block in _blocks(path):
        if not _has_columns(block):
            raise _complaint(path, first, block)
        try:
            frame = pl.read_csv(
                BytesIO(block), has_header=False, separator="\t", quote_char=None, schema=schema
            )
            if frame.select(wrong.any()).item():
                raise _complaint(path, first, block)
            hashes = [pl.col(name).str.to_integer(base=16, dtype=pl.UInt32) for name in HASHES]
            yield frame.with_columns(hashes)
        except pl.exceptions.PolarsError:
            raise _complaint(path, first, block) from None


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read a file as whole lines, some megabytes at a time, with the number of the first line."""
    first, rest = 1, b""
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            while text := file.read(BLOCK):
                lines, end, begun = text.rpartition(b"\n")
                if end:
                    yield first, rest + lines + end
                    first, rest = first + lines.count(b"\n") + 1, begun
                elif len(rest) > BLOCK:
                    raise DataError(f"{path}: line {first} has no end")
                else:
                    rest += begun
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())[:120]}") from None
    if rest:
        yield first, rest + b"\n"
    elif first == 1:
        raise DataError(f"{path} is empty")


def _has_columns(block: bytes) -> bool:
    """Tell whether every line has 39 tabs."""
    text = np.frombuffer(block, dtype=np.uint8)
    tabs, ends = np.flatnonzero(text == ord("\t")), np.flatnonzero(text == ord("\n"))
    expected = (COLUMNS - 1) * np.arange(1, len(ends) + 1)
    return len(tabs) == expected[-1] and np.array_equal(np.searchsorted(tabs, ends), expected)


def _complaint(path: Path, first: int, block: bytes) -> DataError:
    """Find what is wrong with a block that begins at line `first`."""
    for number, line in enumerate(block[:-1].split(b"\n"), first):
        cells = line.removesuffix(b"\r").split(b"\t")
        if len(cells) != COLUMNS:
            return DataError(f"{path}: line {number} has {len(cells)} columns instead of {COLUMNS}")
        for column, (cell, (what, pattern)) in enumerate(zip(cells, CELLS, strict=True), 1):
            if not pattern.fullmatch(cell):
                found = f"{path}: line {number}, column {column} is {cell[:40]!r}"
                return DataError(f"{found}, not {what}")
    return DataError(f"{path} cannot be read at lines from {first}")
