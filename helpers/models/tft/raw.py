"""Tables of hourly series from the public files of the two data sets.

The steps, their order and the ranges of days are those of NVIDIA's scripts. The scripts follow the
authors of the network (Lim et al., arXiv 1912.09363, appendix B). The files are those of the UCI
archive: ElectricityLoadDiagrams20112014 and PEMS-SF, whose pages describe their format.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models import Config
from helpers.models._tables import PREPARED, as_data_error, read_text_chunks
from helpers.models.tft.variants import ID, VARIANTS

if TYPE_CHECKING:
    from polars import DataFrame, Series

POWER = "LD2011_2014.txt"
FILES = (POWER, f"{POWER}.zip", "PEMS-SF.zip")
OCCUPANCY = ("PEMS_train", "PEMS_test")  # each with its labels, in PEMS_trainlabels and so on
DAY = 24
HOUR = ""  # name of the file's first column
SAMPLES = 6  # of ten minutes in an hour
BLOCK = 2**22  # bytes of text that are read at a time


def is_raw(path: Path) -> bool:
    """Return whether `path` is, or a folder that holds, a file of the UCI archive."""
    return bool(_files(path))


def prepare_raw(config: Config, source: Path, folder: Path) -> None:
    """Write the processed folder of `config.variant` into `folder`, an empty folder.

    `source` is `LD2011_2014.txt`, zipped or not, or `PEMS-SF.zip`, or a folder with one of them.
    Raises DataError for a file that is damaged, shortened, another one or the other variant's.
    """
    from helpers.models.tft.prepare import prepare

    paths = {_variant(path): path for path in reversed(_files(source))}
    if config.variant not in paths:
        held = f"the data of variant {next(iter(paths))}" if paths else "no public raw file"
        raise DataError(f"{source} has {held}, but the experiment's is '{config.variant}'")
    path, variant = paths[config.variant], VARIANTS[config.variant]
    with as_data_error(path, "is damaged"):
        table = _electricity(path) if config.variant == "electricity" else _traffic(path)
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


def _variant(path: Path) -> str:
    """Return the variant that a file is for, by what is in it."""
    if path.suffix == ".txt":
        return "electricity"
    with as_data_error(path, "is damaged"), ZipFile(path) as archive:
        members = {Path(name).name for name in archive.namelist()}
    if members.isdisjoint({POWER, *OCCUPANCY}):
        raise DataError(f"{path} is another archive: it has neither {POWER} nor {OCCUPANCY[0]}")
    return "electricity" if POWER in members else "traffic"


def _electricity(path: Path) -> "DataFrame":
    """Return each customer's hourly mean power, from its first value that is not 0 to its last.

    Hours are counted from the file's first. An hour that is missing in between has a power of 0.
    """
    import polars as pl

    power, days = _hourly_power(path), VARIANTS["electricity"].days
    if len(power) < days[-1][1] * DAY:
        raise ValueError(f"it ends at {power[HOUR][-1]}, before day {days[-1][1] - 1}")
    clock, value = power.drop_in_place(HOUR).dt, pl.all().fill_null(0)
    from_first = (value != 0).cum_sum() > 0
    until_last = (value != 0).cum_sum(reverse=True) > 0
    used = power.select(pl.when(from_first & until_last).then(value))
    hours = range(days[0][0] * DAY, days[-1][1] * DAY)
    return _stacked("electricity", used, clock.hour(), clock.weekday() - 1, hours)


def _hourly_power(path: Path) -> "DataFrame":
    """Average the quarters of each hour: a column HOUR, and one for each customer."""
    import polars as pl

    progress, rows, hours, mean = Progress(), 0, [], pl.exclude(HOUR).mean()
    texts = read_text_chunks(path, POWER, BLOCK)
    _, *names = next(texts, b"").decode().strip().replace('"', "").split(";")
    if not names:
        raise ValueError("its first line names no columns")
    schema = {HOUR: pl.String, **dict.fromkeys(names, pl.Float64)}
    hour = pl.col(HOUR).str.to_datetime("%Y-%m-%d %H:%M:%S").dt.truncate("1h")
    lacking = ~pl.all_horizontal(pl.col(names).is_finite().fill_null(False))
    begun = pl.DataFrame(schema={**schema, HOUR: pl.Datetime})
    for text in texts:
        block = pl.read_csv(
            text, has_header=False, schema=schema, separator=";", decimal_comma=True
        )
        if (row := block.select(lacking.arg_true().first()).item()) is not None:
            raise ValueError(f"row {rows + 2 + row} lacks values")
        rows += len(block)
        progress.say(f"{rows:,} rows of quarters of an hour")
        block = pl.concat([begun, block.with_columns(hour)], rechunk=True)
        if not block[HOUR].is_sorted():
            raise ValueError(f"its rows up to {rows + 1} are not in order of time")
        last = block[HOUR].search_sorted(block[HOUR][-1], "left")  # the hour may go on
        hours.append(block[:last].group_by_dynamic(HOUR, every="1h").agg(mean))
        begun = block[last:]
    if not rows:
        raise ValueError("it has no rows")
    hours.append(begun.group_by_dynamic(HOUR, every="1h").agg(mean))
    return pl.concat(hours).upsample(HOUR, every="1h")


def _traffic(path: Path) -> "DataFrame":
    """Return each station's hourly mean occupancy, its days put back into order.

    `randperm` says which day each line of the train file and then of the test file is, from 1. The
    first and the last hour of all are dropped, as NVIDIA's script does.
    """
    import polars as pl

    order = _integers(path, "randperm") - 1
    stations = _integers(path, "stations_list")
    labels = [_integers(path, f"{name}labels") for name in OCCUPANCY]
    weekdays, count = np.concatenate(labels), len(order) * DAY
    if not np.array_equal(np.sort(order), np.arange(len(weekdays))):
        raise ValueError(f"randperm is not an order of the {len(weekdays)} days with labels")
    if len(set(stations)) != len(stations) or not set(weekdays) <= set(range(1, 8)):
        raise ValueError("a station occurs twice, or a label is below 1 or above 7")
    occupancy = _hourly_occupancy(path, np.split(order, [len(labels[0])]), len(stations))
    weekdays[order] = weekdays.copy()
    hourly = pl.from_numpy(occupancy.reshape(count, -1), schema=[str(code) for code in stations])
    hourly = hourly.fill_nan(None).fill_null(strategy="forward")
    clock = pl.Series(np.arange(count) % DAY, dtype=pl.Int8)
    weekday = pl.Series(np.repeat(weekdays, DAY), dtype=pl.Int8)
    hours = range(1, min(count - 1, VARIANTS["traffic"].days[-1][1] * DAY))
    return _stacked("traffic", hourly, clock, weekday, hours)


def _hourly_occupancy(
    path: Path, parts: list[NDArray[np.int64]], stations: int
) -> NDArray[np.float64]:
    """Average the six samples of each hour, line by line: [days, 24, stations], in order.

    `parts` says which day each line of the two files is.
    """
    progress, hourly = Progress(), np.empty((sum(map(len, parts)), DAY, stations))
    for name, days in zip(OCCUPANCY, parts, strict=True):
        read = 0
        for line in read_text_chunks(path, name):
            samples = _numbers(name, line)
            if samples.shape != (stations, DAY * SAMPLES):
                raise ValueError(f"a day of {name} is not {stations} x {DAY * SAMPLES} numbers")
            if read == len(days):
                raise ValueError(f"{name} has more days than labels")
            hourly[days[read]] = samples.reshape(stations, DAY, SAMPLES).mean(axis=-1).T
            read += 1
            progress.say(f"{name}: {read} of {len(days)} days")
        if read < len(days):
            raise ValueError(f"{name} ends {len(days) - read} days before its labels")
    return hourly


def _stacked(
    kind: str, hourly: "DataFrame", clock: "Series", weekdays: "Series", hours: range
) -> "DataFrame":
    """Put `hours` of a column for each series below one another, without those that are null."""
    import polars as pl

    variant = VARIANTS[kind]
    time, weekday, since = variant.known
    table = hourly.with_columns(clock.alias(time), weekdays.alias(weekday)).with_row_index(since)
    table = table.slice(hours.start, len(hours))
    table = table.with_columns((pl.col(since) // DAY).alias(variant.split_column))
    index = [*variant.known, variant.split_column]
    table = table.unpivot(index=index, variable_name=ID, value_name=variant.target)
    return table.drop_nulls()


def _integers(path: Path, name: str) -> NDArray[np.int64]:
    """Read a member that is one line, `[1 2 ...]`."""
    return np.ravel(_numbers(name, next(read_text_chunks(path, name), b""))).astype(np.int64)


def _numbers(name: str, line: bytes) -> NDArray[np.float64]:
    """Read a line of a member, `[a b ...; c d ...]`, as [rows, columns]."""
    text = line.strip()
    if text[:1] + text[-1:] != b"[]":
        raise ValueError(f"{name} has a line that is not in brackets")
    try:
        return np.loadtxt(text[1:-1].decode().split(";"), ndmin=2, comments=None)
    except ValueError as error:
        raise ValueError(f"{name} has a line that is not a table of numbers: {error}") from None
