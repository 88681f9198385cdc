"""How a folder of Parquet files becomes batches, and how predictions are scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays
from helpers.models._arrays import concatenate, spread, take
from helpers.models.widedeep.features import (
    CLICKED,
    DISPLAY,
    HOTNESS,
    MULTI_HOT,
    NAMES,
    NUMERIC,
    ONE_HOT,
    PAD,
)
from helpers.models.widedeep.metric import first_click_ranks, mean_average_precision

if TYPE_CHECKING:
    from polars import DataFrame, Series

GENERATED, PREPARED = "generated.json", "prepared.json"  # say where a set came from
LAYOUT = "expected NVIDIA's prepared folder: valid/*.parquet"
SLICE = 1 << 18  # rows that are in memory at once

Integers = NDArray[np.int64]


class Displays:
    """The rows of `valid/*.parquet`, in the order of the files' names: an ad in its display each.

    `output` is the name of the network's. The features are read when they are asked for, in slices.
    Raises DataError for another layout, a column that is missing or of another type, a file that
    cannot be read, and a value that the network has no place for.
    """

    def __init__(self, folder: Path, output: str) -> None:
        self._output = output
        marked = [name for name in (GENERATED, PREPARED) if (folder / name).is_file()]
        origins = {GENERATED: "generated", PREPARED: "prepared from the public files"}
        self._origin = origins[marked[0]] if marked else "folder"
        self._files = files_of(folder, "valid")
        labels = [read_labels(path) for path in self._files]
        self._starts = np.cumsum([0, *(len(display) for display, _ in labels)])
        self.displays = np.concatenate([display for display, _ in labels])  # [rows]
        self.clicked = np.concatenate([clicked for _, clicked in labels])  # [rows]
        if not self.clicked.any():
            what = "no click" if len(self) else "no rows"
            raise DataError(f"{folder / 'valid'} holds {what}, so that there is nothing to score")

    @property
    def facts(self) -> dict[str, str | int]:
        """Number of rows, displays, clicks and files, and the origin."""
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
            rows = self.rows(places[first : first + step])
            for start in range(0, len(rows[NAMES[0]]), batch_size):
                yield take(rows, slice(start, start + batch_size))

    def rows(self, places: Integers) -> Arrays:
        """Give the features of the rows at `places`, which ascend."""
        return concatenate(self._parts(places))

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Give MAP@12 over all displays that have a click.

        The output is [rows, 1]; raises DataError for another shape.
        """
        found = outputs[self._output]
        if found.shape != (len(self), 1):
            raise DataError(f"{self._output} is {list(found.shape)} and should be {[len(self), 1]}")
        ranks = first_click_ranks(self.displays, self.clicked, found[:, 0])
        return {"map12": mean_average_precision(ranks)}

    def _parts(self, places: Integers) -> Iterator[Arrays]:
        """Read the rows at `places`, which ascend, a slice of a file at a time."""
        for path, start, end in zip(self._files, self._starts, self._starts[1:], strict=False):
            for first in range(start, end, SLICE):
                low, high = np.searchsorted(places, (first, min(first + SLICE, end)))
                if low < high:
                    chosen = places[low:high] - places[low]
                    rows = read_rows(path, int(places[low] - start), int(chosen[-1]) + 1)
                    yield take(rows, chosen)


def files_of(folder: Path, part: str) -> list[Path]:
    """Name the Parquet files of `part`, "train" or "valid", sorted; raise DataError if none."""
    found = sorted(path for path in (folder / part).glob("*.parquet") if path.is_file())
    if not found:
        raise DataError(f"{folder} holds no {part}/*.parquet: {LAYOUT}")
    return found


def read_labels(path: Path) -> tuple[Integers, NDArray[np.bool_]]:
    """Read each row's display and whether it was clicked; check that the features are there too."""
    import polars as pl

    schema = _collected(path, lambda: pl.read_parquet_schema(path))
    _check_schema(path, schema)
    table = _collected(path, lambda: pl.read_parquet(path, columns=[DISPLAY, CLICKED]))
    _check_nulls(path, table)
    if not table[CLICKED].cast(pl.Float64).is_in([0.0, 1.0]).all():
        raise DataError(f"{path} has a value in column {CLICKED} that is not 0 or 1")
    return table[DISPLAY].cast(pl.Int64).to_numpy(), table[CLICKED].cast(pl.Boolean).to_numpy()


def read_rows(path: Path, first: int, count: int) -> Arrays:
    """Read the features of `count` rows from row `first` of a file.

    Numbers are float32 [count, 1], ids int32 [count, 1] and lists int32 [count, 3], padded with -1.
    Raises DataError for a value that is not finite, an id outside its table, a longer list.
    """
    import polars as pl

    lazy = pl.scan_parquet(path).select(NAMES).slice(first, count)
    table = _collected(path, lazy.collect)
    _check_nulls(path, table)
    arrays: Arrays = {}
    for name in NUMERIC:
        arrays[name] = table[name].cast(pl.Float32).to_numpy()[:, None]
        if not np.isfinite(arrays[name]).all():
            raise DataError(f"{path} has a value in column {name} that is not a finite number")
    for name, (rows, _) in ONE_HOT.items():
        arrays[name] = _ids(path, name, table[name].to_numpy()[:, None], 0, rows)
    for name, (rows, _) in MULTI_HOT.items():
        arrays[name] = _ids(path, name, _padded(path, table[name]), PAD, rows)
    return arrays


def _padded(path: Path, lists: "Series") -> NDArray[Any]:
    """Turn lists into [rows, 3]."""
    import polars as pl

    lists = lists.cast(pl.List(pl.Int64))
    lengths = lists.list.len().to_numpy()
    if (lengths > HOTNESS).any():
        text = f"{lengths.max()} ids in a list of {lists.name}, and {HOTNESS} fit"
        raise DataError(f"{path} has {text}")
    if (lists.list.drop_nulls().list.len().to_numpy() != lengths).any():
        raise DataError(f"{path} has a value in column {lists.name} that is missing")
    places = [lists.list.get(n, null_on_oob=True).fill_null(PAD).to_numpy() for n in range(HOTNESS)]
    return np.stack(places, axis=1)


def _ids(path: Path, name: str, ids: NDArray[Any], low: int, rows: int) -> NDArray[np.int32]:
    wrong = ids[(ids < low) | (ids >= rows)]
    if wrong.size:
        raise DataError(f"{path} holds {name} {wrong[0]}, and its table has 0 to {rows - 1}")
    return ids.astype(np.int32)


def _check_schema(path: Path, schema: Any) -> None:
    import polars as pl

    missing = [name for name in (*NAMES, DISPLAY, CLICKED) if name not in schema]
    if missing:
        raise DataError(f"{path} lacks the column {', '.join(missing)}")
    for name in (*NAMES, DISPLAY, CLICKED):
        kind = schema[name]
        if name in MULTI_HOT:
            expected, fits = "lists of integers", isinstance(kind, pl.List | pl.Array)
            fits = fits and kind.inner.is_integer()
        elif name in ONE_HOT or name == DISPLAY:
            expected, fits = "integers", kind.is_integer()
        else:
            expected, fits = "numbers", kind.is_numeric()
            fits = fits or (name == CLICKED and kind == pl.Boolean)
        if not fits:
            raise DataError(f"{path} has {kind} in column {name}, where {expected} are expected")


def _check_nulls(path: Path, table: "DataFrame") -> None:
    for column in table:
        if column.null_count():
            raise DataError(f"{path} has a value in column {column.name} that is missing")


def _collected(path: Path, read: Any) -> Any:
    from polars.exceptions import PanicException, PolarsError

    try:
        return read()
    except (PolarsError, PanicException, OSError) as error:  # a few damages make polars panic
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())[:120]}") from None
