"""What the public files of the two data sets look like, and how they become hourly series.

The steps, their order and the ranges of days are those of NVIDIA's scripts, which follow the
authors of the network (Lim et al., arXiv 1912.09363, appendix B). The files are those of the UCI
archive: ElectricityLoadDiagrams20112014 and PEMS-SF, whose pages describe their format.
"""

import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models import Config
from helpers.models.tft.data import PREPARED
from helpers.models.tft.prepare import prepare
from helpers.models.tft.variants import CATEGORY, ID, TIME, VARIANTS

if TYPE_CHECKING:
    from pandas import DataFrame, DatetimeIndex

POWER = "LD2011_2014.txt"
FILES = (POWER, f"{POWER}.zip", "PEMS-SF.zip")
OCCUPANCY = ("PEMS_train", "PEMS_test")  # each with its labels, in PEMS_trainlabels and so on
DAY = 24
SAMPLES = 6  # of ten minutes in an hour
CHUNK = 4096  # rows read at a time: 12 MB for 370 customers
LONGEST_LINE = 2**23  # bytes; a day of PEMS-SF has 1 MB


def holds_raw(path: Path) -> bool:
    """Tell whether `path` is, or a folder that holds, a file of the UCI archive."""
    return bool(_files(path))


def prepare_raw(config: Config, source: Path, folder: Path) -> None:
    """Write the processed folder of `config.variant` into `folder`, an empty folder.

    `source` is `LD2011_2014.txt`, zipped or not, or `PEMS-SF.zip`, or a folder with one of them.
    Prints a line every few seconds. Raises DataError for a file that is damaged, shortened, another
    one or the other variant's.
    """
    files = _files(source)
    kinds = {_kind(path): path for path in reversed(files)}
    if config.variant not in kinds:
        held = f"the data of variant {next(iter(kinds))}" if kinds else "no public raw file"
        raise DataError(f"{source} holds {held}, and the experiment's is '{config.variant}'")
    path, variant = kinds[config.variant], VARIANTS[config.variant]
    try:
        table = _electricity(path) if config.variant == "electricity" else _traffic(path)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())[:120]}") from None
    print(f"scaling and writing {len(table):,} hours")
    try:
        prepare(table, variant, variant.days, folder)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    marker = {"variant": config.variant, "file": path.name}
    (folder / PREPARED).write_text(json.dumps(marker) + "\n")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix in (".txt", ".zip") else []
    if (path / "test.csv").exists():
        return []
    return [path / name for name in FILES if (path / name).is_file()]


def _kind(path: Path) -> str:
    """Name the variant that a file is for, by what is in it."""
    if path.suffix == ".txt":
        return "electricity"
    try:
        with zipfile.ZipFile(path) as archive:
            members = {Path(name).name for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    if members.isdisjoint({POWER, *OCCUPANCY}):
        raise DataError(f"{path} holds neither {POWER} nor {OCCUPANCY[0]}: it is another archive")
    return "electricity" if POWER in members else "traffic"


class _ShortLines(RawIOBase):
    """A stream that raises ValueError within a line of more than LONGEST_LINE bytes.

    A reader of lines would hold all of it, which may be a thousand times the size of a zip file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._length = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._file.read(len(buffer))
        _, end, begun = content.rpartition(b"\n")
        self._length = len(begun) + (0 if end else self._length)
        if self._length > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _member(path: Path, name: str) -> Iterator[BufferedReader]:
    """Open a member of a zip file, in any of its folders, as a stream; or a plain file."""
    if path.suffix == ".txt":
        with path.open("rb") as file:
            yield BufferedReader(_ShortLines(file))
        return
    with zipfile.ZipFile(path) as archive:
        found = [each for each in archive.namelist() if Path(each).name == name]
        found = [each for each in found if "__MACOSX" not in each]
        if not found:
            raise DataError(f"{path} lacks {name}")
        with archive.open(found[0]) as member:
            yield BufferedReader(_ShortLines(member))


def _electricity(path: Path) -> "DataFrame":
    """Give each customer's hourly mean power, from its first value that is not 0 to its last.

    Hours are counted from the file's first. What is 0 or missing in between is 0.
    """
    import pandas as pd

    variant = VARIANTS["electricity"]
    hourly = _hourly_power(path)
    first, last = variant.days[0][0] * DAY, variant.days[-1][1] * DAY
    if len(hourly) < last:
        raise DataError(
            f"{path} ends at {hourly.index[-1]}, before day {last // DAY - 1}: it is cut short"
        )
    values = hourly.to_numpy()
    there = np.nan_to_num(values) != 0
    active = np.logical_or.accumulate(there) & np.logical_or.accumulate(there[::-1])[::-1]
    active[:first] = active[last:] = False
    series, hours = np.nonzero(active.T)
    names, index = np.array(hourly.columns, dtype=object), hourly.index
    return pd.DataFrame(
        {
            ID: names[series],
            CATEGORY: names[series],
            "hour": index.hour.to_numpy()[hours],
            "day_of_week": index.dayofweek.to_numpy()[hours],
            TIME: hours,
            variant.split_column: hours // DAY,
            variant.target: np.nan_to_num(values[hours, series]),
        }
    )


def _hourly_power(path: Path) -> "DataFrame":
    """Average the quarters of each hour, chunk by chunk: [hours, customers]."""
    import pandas as pd

    progress, parts, rows = Progress(), [], 0
    begun: list[DataFrame] = []  # the last hour of a chunk, which the next may go on with
    with (
        _member(path, POWER) as file,
        pd.read_csv(file, sep=";", decimal=",", index_col=0, chunksize=CHUNK) as chunks,
    ):
        for chunk in chunks:
            chunk.index = _hours(path, chunk, rows)
            rows += len(chunk)
            joined = pd.concat([*begun, chunk])
            last = joined.index == joined.index[-1]
            parts.append(joined[~last].groupby(level=0).mean())
            begun = [joined[last]]
            progress.say(f"{rows:,} rows of quarters of an hour")
    if not rows:
        raise DataError(f"{path} has no rows")
    return pd.concat([*parts, begun[0].groupby(level=0).mean()]).asfreq("h")


def _hours(path: Path, chunk: "DataFrame", before: int) -> "DatetimeIndex":
    """Give the hour of each row; raise DataError for a row that is not one of numbers."""
    import pandas as pd

    wrong = [name for name in chunk.columns if chunk[name].dtype.kind not in "if"]
    if wrong or chunk.columns.empty:
        column = f"column {wrong[0]} holds text" if wrong else "there are no columns"
        raise DataError(f"{path} is not the public file: {column} at rows from {before + 2}")
    gaps = np.flatnonzero(chunk.isna().to_numpy().any(axis=1))
    if gaps.size:
        raise DataError(f"{path} is damaged: row {before + 2 + gaps[0]} lacks values")
    return pd.to_datetime(chunk.index, format="%Y-%m-%d %H:%M:%S").floor("h")


def _traffic(path: Path) -> "DataFrame":
    """Give each station's hourly mean occupancy, its days put back into order.

    `randperm` says which day each line of the train file and then of the test file is, from 1. The
    first and the last hour of all are dropped, as NVIDIA's script does.
    """
    import pandas as pd

    variant = VARIANTS["traffic"]
    order = _integers(path, "randperm") - 1
    stations = _integers(path, "stations_list")
    labels = [_integers(path, f"{name}labels") for name in OCCUPANCY]
    days, weekdays = len(order), np.concatenate(labels)
    if not np.array_equal(np.sort(order), np.arange(days)) or len(weekdays) != days:
        raise DataError(
            f"{path} is damaged: randperm is no order of the {len(weekdays)} days with labels"
        )
    if len(set(stations)) != len(stations) or not set(weekdays) <= set(range(1, 8)):
        raise DataError(f"{path} is damaged: a station comes twice or a label is not 1 to 7")
    hourly = _hourly_occupancy(path, order, [len(each) for each in labels], len(stations))
    weekdays[order] = weekdays.copy()
    values = pd.DataFrame(hourly.reshape(days * DAY, -1)).ffill().to_numpy()
    last = min(days * DAY - 1, variant.days[-1][1] * DAY)
    clock, count = np.arange(1, last), len(stations)
    ids, (time_of_day, weekday, since) = np.repeat(stations, len(clock)), variant.known
    return pd.DataFrame(
        {
            ID: ids,
            CATEGORY: ids,
            time_of_day: np.tile(clock % DAY, count),
            weekday: np.tile(weekdays[clock // DAY], count),
            since: np.tile(clock, count),
            variant.split_column: np.tile(clock // DAY, count),
            variant.target: values[1:last].T.ravel(),
        }
    ).dropna()


def _hourly_occupancy(
    path: Path, order: NDArray[np.int64], lines: list[int], stations: int
) -> NDArray[np.float64]:
    """Average the six samples of each hour, line by line: [days, 24, stations], in order."""
    progress, place = Progress(), 0
    hourly = np.empty((len(order), DAY, stations))
    for name, expected in zip(OCCUPANCY, lines, strict=True):
        end = place + expected
        with _member(path, name) as file:
            for line in file:
                if place == end:
                    raise DataError(f"{path} is damaged: {name} has more days than labels")
                hourly[order[place]] = _matrix(path, name, line, stations)
                place += 1
                progress.say(f"{place} of {len(order)} days")
        if place < end:
            raise DataError(f"{path} is damaged: {name} ends {end - place} days before its labels")
    return hourly


def _matrix(path: Path, name: str, line: bytes, stations: int) -> NDArray[np.float64]:
    """Read a line `[a b ...; c d ...]`, stations by samples, into [24, stations]."""
    text, shape = line.strip(), (stations, DAY * SAMPLES)
    rows = [row.split() for row in text[1:-1].split(b";")]
    if text[:1] + text[-1:] != b"[]" or {len(row) for row in rows} != {shape[1]}:
        raise DataError(
            f"{path} is damaged: a day of {name} is not {shape[0]} x {shape[1]} numbers"
        )
    samples = np.array(rows, dtype=np.float64)
    if samples.shape != shape:
        raise DataError(
            f"{path} is damaged: a day of {name} is not {shape[0]} x {shape[1]} numbers"
        )
    return np.asarray(samples.reshape(stations, DAY, SAMPLES).mean(axis=-1).T)


def _integers(path: Path, name: str) -> NDArray[np.int64]:
    """Read a member that is one line, `[1 2 ...]`."""
    with _member(path, name) as file:
        text = file.read(LONGEST_LINE).strip()
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise DataError(f"{path} is damaged: {name} is no list in brackets")
    return np.array(text[1:-1].split(), dtype=np.int64)
