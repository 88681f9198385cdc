"""Batches from a folder of Parquet files, and metrics of predictions."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays, Dataset
from helpers.models._arrays import concatenate, spread, take
from helpers.models._tables import as_data_error, check_values, origin
from helpers.models.widedeep.features import CLICKED, DISPLAY, HOTNESS, MULTI_HOT, NAMES, PAD, ROWS
from helpers.models.widedeep.metric import first_click_ranks, mean_average_precision

if TYPE_CHECKING:
    from polars import DataFrame, DataType, Series

SLICE = 1 << 18  # rows that are in memory at once

Integers = NDArray[np.int64]


class Displays(Dataset):
    """The rows of `valid/*.parquet`, in the order of the files' names: an ad in its display each.

    `output` is the name of the network's; `part` may also be "train". The features are read when
    they are asked for, in slices. Raises DataError for another layout, a column that is missing or
    of another type, and a file that cannot be read. Also for a value that the network cannot take.
    """

    def __init__(self, folder: Path, output: str, part: str = "valid") -> None:
        self.output, self._origin = output, origin(folder)
        self._files = sorted(path for path in (folder / part).glob("*.parquet") if path.is_file())
        if not self._files:
            layout = "Use NVIDIA's prepared folder, with valid/*.parquet."
            raise DataError(f"{folder} has no {part}/*.parquet. {layout}")
        displays, clicked = zip(*map(read_labels, self._files), strict=True)
        self._starts = np.cumsum([0, *map(len, displays)])
        self.displays, self.clicked = np.concatenate(displays), np.concatenate(clicked)  # [rows]
        if not self.clicked.any():
            what = "no click" if len(self) else "no rows"
            raise DataError(f"{folder / part} has {what}, so nothing can be scored")

    @property
    def facts(self) -> dict[str, str | int]:
        """Return the numbers of rows, displays, clicks and files, and the origin."""
        return {
            "rows": len(self),
            "displays": len(np.unique(self.displays)),
            "clicks": int(self.clicked.sum()),
            "files": len(self._files),
            "origin": self._origin,
        }

    def __len__(self) -> int:
        return len(self.displays)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield the 29 features: float32 [batch, 1], int32 [batch, 1] and int32 [batch, 3]."""
        places = spread(len(self), limit)
        step = max(SLICE // batch_size, 1) * batch_size
        for first in range(0, len(places), step):
            rows = self.take(places[first : first + step])
            for start in range(0, len(rows[NAMES[0]]), batch_size):
                yield take(rows, slice(start, start + batch_size))

    def take(self, places: Integers) -> Arrays:
        """Read the features of the rows at `places`, a slice of a file at a time."""
        parts = []
        for path, (start, end) in zip(self._files, pairwise(self._starts.tolist()), strict=True):
            for first in range(start, end, SLICE):
                low, high = np.searchsorted(places, (first, min(first + SLICE, end)))
                if low < high:
                    chosen = places[low:high] - places[low]
                    rows = read_rows(path, int(places[low] - start), int(chosen[-1]) + 1)
                    parts.append(take(rows, chosen))
        return concatenate(parts)

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Return MAP@12 of all displays with a click; raise DataError for outputs not [rows, 1]."""
        scores = outputs[self.output]
        if scores.shape != (len(self), 1):
            raise DataError(f"{self.output} is {list(scores.shape)} and should be {[len(self), 1]}")
        ranks = first_click_ranks(self.displays, self.clicked, scores[:, 0])
        return {"map12": mean_average_precision(ranks)}

    def decisions(self, outputs: Arrays) -> NDArray[np.int64]:
        """Return the row of the ad that each display would show first."""
        order = np.lexsort((-outputs[self.output][:, 0], self.displays))
        return np.asarray(order[np.unique(self.displays[order], return_index=True)[1]])


def read_labels(path: Path) -> tuple[Integers, NDArray[np.bool_]]:
    """Read each row's display and whether it was clicked; check that the features are there too."""
    import polars as pl

    with as_data_error(path):
        _check_schema(path, pl.read_parquet_schema(path))
        table = pl.read_parquet(path, columns=[DISPLAY, CLICKED])
    _check_nulls(path, table)
    clicked = table[CLICKED].cast(pl.Float64)
    check_values(clicked.is_in([0.0, 1.0]).all(), path, CLICKED, "not 0 or 1")
    return table[DISPLAY].cast(pl.Int64).to_numpy(), clicked.cast(pl.Boolean).to_numpy()


def read_rows(path: Path, first: int, count: int) -> Arrays:
    """Read the features of `count` rows from row `first` of a file.

    Numbers are float32 [count, 1], ids int32 [count, 1] and lists int32 [count, 3], padded with -1.
    Raises DataError for a value that is not finite, an id outside its table, a longer list.
    """
    import polars as pl

    with as_data_error(path):
        table = pl.scan_parquet(path).select(NAMES).slice(first, count).collect()
    _check_nulls(path, table)
    arrays: Arrays = {}
    for name in NAMES:
        if name not in ROWS:
            arrays[name] = table[name].cast(pl.Float32).to_numpy()[:, None]
            check_values(np.isfinite(arrays[name]).all(), path, name, "not a finite number")
            continue
        least, column = (PAD, _padded(path, table[name])) if name in MULTI_HOT else (0, table[name])
        ids, last = column.to_numpy().reshape(len(table), -1), ROWS[name] - 1
        if (wrong := ids[(ids < least) | (ids > last)]).size:
            raise DataError(f"{path} has {name} {wrong[0]}, but its table has 0 to {last}")
        arrays[name] = ids.astype(np.int32)
    return arrays


def _padded(path: Path, lists: "Series") -> "Series":
    """Make every list one of 3 ids."""
    import polars as pl

    lists = lists.cast(pl.List(pl.Int64))
    if (longest := lists.list.len().to_numpy().max(initial=0)) > HOTNESS:
        raise DataError(
            f"{path} has {longest} ids in a list of {lists.name}; {HOTNESS} are allowed"
        )
    padding = pl.Series(lists.name, [[PAD] * HOTNESS], pl.List(pl.Int64))
    padded = lists.list.concat(padding).list.head(HOTNESS)
    _check_nulls(path, padded.explode().to_frame())
    return padded.list.to_array(HOTNESS)


def _check_schema(path: Path, schema: "Mapping[str, DataType]") -> None:
    import polars as pl

    names = (*NAMES, DISPLAY, CLICKED)
    if missing := [name for name in names if name not in schema]:
        raise DataError(f"{path} lacks the column {', '.join(missing)}")
    for name in names:
        kind = schema[name]
        if name in MULTI_HOT:
            expected = "lists of integers"
            fits = isinstance(kind, pl.List | pl.Array) and kind.inner.is_integer()
        elif name in (*ROWS, DISPLAY):
            expected, fits = "integers", kind.is_integer()
        else:
            expected = "numbers"
            fits = kind.is_numeric() or (name == CLICKED and kind == pl.Boolean)
        if not fits:
            raise DataError(f"{path} has {kind} in column {name}, where {expected} are expected")


def _check_nulls(path: Path, table: "DataFrame") -> None:
    for column in table:
        check_values(not column.null_count(), path, column.name, "missing")
