"""How a folder that NVIDIA's preprocessing wrote becomes windows, and how forecasts are scored."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays
from helpers.models._arrays import spread
from helpers.models._tables import origin, reading, require
from helpers.models.tft import pickles
from helpers.models.tft.variants import (
    CATEGORY,
    HISTORY,
    HORIZON,
    ID,
    LENGTH,
    QUANTILES,
    TIME,
    VARIANTS,
    Variant,
)

LAYOUT = "expected NVIDIA's processed folder: test.csv and tgt_scalers.bin"

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The hours of every series, one series after the other, each in order of time."""

    ids: Integers  # [rows]: the code of the series
    categories: Integers  # [rows]: its row in the network's embedding
    known: Floats  # [rows, 3], scaled
    target: Floats  # [rows], scaled
    starts: Integers  # [windows]: the first row of each window of 192 hours
    dropped: int  # series that are shorter than a window

    def windows(self, chosen: Integers) -> tuple[Integers, Floats, Floats]:
        """Copy windows out: categories, known and target, each [chosen, 192, 1 or 3]."""
        rows = self.starts[chosen, None] + np.arange(LENGTH)
        return self.categories[rows, None], self.known[rows], self.target[rows, None]


def read_rows(path: Path, variant: Variant) -> Rows:
    """Read a split, such as `test.csv`: every series has a window at each of its hours but 191.

    Raises DataError for a column that is missing or not made of numbers, a series that the network
    has no embedding for, and a file without a whole window.
    """
    table, last = _read_table(path, variant), variant.cardinality - 1
    for name in (ID, CATEGORY):
        require(not (table[name] % 1).any(), path, name, "not a whole number")
    ids, categories = (table[name].astype(np.int64) for name in (ID, CATEGORY))
    if (unknown := categories[(categories < 0) | (categories > last)]).size:
        raise DataError(f"{path} holds {CATEGORY} {unknown[0]}, and the network knows 0 to {last}")
    starts = np.flatnonzero(ids[LENGTH - 1 :] == ids[: 1 - LENGTH])
    if not starts.size:
        raise DataError(f"{path} holds no series of {LENGTH} hours")
    return Rows(
        ids,
        categories,
        np.stack([table[name] for name in variant.known], axis=1).astype(np.float32),
        table[variant.target].astype(np.float32),
        starts,
        dropped=len(np.unique(ids)) - len(np.unique(ids[starts])),
    )


class Windows:
    """The windows of `test.csv`, by series and start, and the scalers of `tgt_scalers.bin`.

    `names` are those of the three inputs and the output. Raises DataError for another layout.
    """

    def __init__(self, folder: Path, variant: Variant, names: tuple[str, ...]) -> None:
        if not (folder / "test.csv").is_file():
            raise DataError(f"{folder} holds no test.csv: {LAYOUT}")
        self.variant, self._names, self._origin = variant, names, origin(folder)
        self._rows = read_rows(folder / "test.csv", variant)
        self.series = self._rows.ids[self._rows.starts]  # [windows]: whose each window is
        codes, places = np.unique(self.series, return_inverse=True)
        self._scalers = _scalers(folder / "tgt_scalers.bin", codes)[places]  # mean and scale

    @property
    def facts(self) -> dict[str, str | int]:
        """Number of series, windows and hours, series too short to be used, and the origin."""
        return {
            "series": len(np.unique(self.series)),
            "windows": len(self),
            "hours": len(self._rows.ids),
            "series dropped": self._rows.dropped,
            "origin": self._origin,
        }

    def __len__(self) -> int:
        return len(self._rows.starts)

    def spread(self, limit: int | None = None) -> Integers:
        """Choose `limit` windows, spread evenly over the whole set; all without a limit."""
        return spread(len(self), limit)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield int64 [batch, 192, 1], float32 [batch, 192, 3] and float32 [batch, 192, 1]."""
        chosen = self.spread(limit)
        for start in range(0, len(chosen), batch_size):
            arrays = self._rows.windows(chosen[start : start + batch_size])
            yield dict(zip(self._names, arrays, strict=False))

    def unscaled(self, values: Floats | Doubles, chosen: Integers) -> NDArray[np.float64]:
        """Give the scaled values [chosen, ...] of windows in the units of the data."""
        shape = (2, len(chosen), *[1] * (values.ndim - 1))
        mean, scale = self._scalers[chosen].T.reshape(shape)
        return np.asarray(values * scale + mean, dtype=np.float64)

    def targets(self, chosen: Integers) -> NDArray[np.float64]:
        """Give the target of windows, history and horizon [chosen, 192], in units of the data."""
        return self.unscaled(self._rows.windows(chosen)[2][..., 0], chosen)

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Give the q-risk of P10, P50 and P90 over all windows and hours, in units of the data.

        The outputs are [windows, 24, 3]; raises DataError for another shape.
        """
        name, expected = self._names[-1], (len(self), HORIZON, len(QUANTILES))
        if (found := outputs[name]).shape != expected:
            raise DataError(f"{name} is {list(found.shape)} and should be {list(expected)}")
        everything = self.spread()
        actual = self.targets(everything)[:, HISTORY:]
        return {
            f"p{round(100 * q)}": q_risk(actual, self.unscaled(found[..., place], everything), q)
            for place, q in enumerate(QUANTILES)
        }


def q_risk(actual: Floats | Doubles, forecast: Floats | Doubles, q: float) -> float:
    """Give twice the quantile loss over the mean absolute target (arXiv 1912.09363, 6.2)."""
    above = actual - forecast
    loss = np.maximum(q * above, (q - 1) * above)
    return float(2 * loss.mean() / np.abs(actual).mean())


def _read_table(path: Path, variant: Variant) -> dict[str, NDArray[np.float64]]:
    """Read the columns that are needed, in order of series and time."""
    import polars as pl

    numbers = dict.fromkeys((ID, CATEGORY, TIME, variant.target, *variant.known), pl.Float64)
    with reading(path):
        scan = pl.scan_csv(path, schema_overrides=numbers, ignore_errors=True)  # others are null
        header = scan.collect_schema().names()
        if missing := ", ".join(name for name in numbers if name not in header):
            others = [n for n, v in VARIANTS.items() if v is not variant and v.target in header]
            hint = f"; its columns are those of variant {others[0]}" if others else ""
            raise DataError(f"{path} lacks the column {missing}{hint}")
        table = scan.select(*numbers).sort(ID, TIME, maintain_order=True).collect()
    for column in table:
        finite = column.is_finite().fill_null(False).all()
        require(finite, path, column.name, "not a finite number")
    return {name: table[name].to_numpy() for name in numbers}


def _scalers(path: Path, codes: Integers) -> NDArray[np.float64]:
    """Read the mean and scale for each series, [series, 2]: of its own scaler, or the only one's,
    which stands under the key ''.
    """
    scalers, found = pickles.read(path), np.empty((len(codes), 2))
    if not isinstance(scalers, dict):
        raise DataError(f"{path} holds a {type(scalers).__name__}, not a dict of scalers")
    for place, code in enumerate(codes):
        scaler: Any = scalers.get(code, scalers.get(""))
        try:
            found[place] = scaler.mean_.item(), scaler.scale_.item()
        except (AttributeError, ValueError):
            raise DataError(f"{path} has no scaler of one target for id {code}") from None
        mean, scale = found[place]
        if not (np.isfinite([mean, scale]).all() and scale > 0):
            raise DataError(f"{path} scales id {code} by {scale} around {mean}")
    return found
