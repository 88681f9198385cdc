"""Windows from a folder of NVIDIA's preprocessing, and metrics of forecasts."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays, Dataset
from helpers.models._tables import as_data_error, check_values, origin
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

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


class Windows(Dataset):
    """The windows of `test.csv`, by series and start, and the scalers of `tgt_scalers.bin`.

    A series has a window at each of its hours but the last 191. `names` are those of the three
    inputs and the output; `split` may also be "train". Raises DataError for another layout, a
    column that is missing or not numeric, and a file without a whole window. Also for a series
    without an embedding in the network.
    """

    def __init__(
        self, folder: Path, variant: Variant, names: tuple[str, ...], split: str = "test"
    ) -> None:
        self.variant, self.names = variant, names
        path, last = folder / f"{split}.csv", variant.cardinality - 1
        if not path.is_file():
            layout = "Use NVIDIA's processed folder, with test.csv and tgt_scalers.bin."
            raise DataError(f"{folder} has no {path.name}. {layout}")
        table = _read_table(path, variant)
        for name in (ID, CATEGORY):
            check_values(not (table[name] % 1).any(), path, name, "not a whole number")
        # of each row: its series, and the row of that in the network's embedding
        ids, self._categories = (table[name].astype(np.int64) for name in (ID, CATEGORY))
        if (unknown := self._categories[(self._categories < 0) | (self._categories > last)]).size:
            value = f"{CATEGORY} {unknown[0]}"
            raise DataError(f"{path} has {value}, but the network has 0 to {last}")
        known = [table[name] for name in variant.known]
        self._known = np.stack(known, axis=1).astype(np.float32)  # [rows, 3], scaled
        self._target = table[variant.target].astype(np.float32)  # [rows], scaled
        self._starts = np.flatnonzero(ids[LENGTH - 1 :] == ids[: 1 - LENGTH])  # first rows
        if not len(self):
            raise DataError(f"{path} has no series of {LENGTH} hours")
        self.series = ids[self._starts]  # [windows]: the series of each window
        codes, places = np.unique(self.series, return_inverse=True)
        self._scalers = _scalers(folder / "tgt_scalers.bin", codes)[places]  # mean and scale
        self._facts: dict[str, str | int] = {
            "series": len(codes),
            "windows": len(self),
            "hours": len(ids),
            "series dropped": len(np.unique(ids)) - len(codes),  # shorter than a window
            "origin": origin(folder),
        }

    @property
    def facts(self) -> dict[str, str | int]:
        return self._facts

    def __len__(self) -> int:
        return len(self._starts)

    def gather(self, chosen: Integers) -> tuple[Integers, Floats, Floats]:
        """Copy windows out: categories, known and target, each [chosen, 192, 1 or 3]."""
        rows = self._starts[chosen, None] + np.arange(LENGTH)
        return self._categories[rows, None], self._known[rows], self._target[rows, None]

    def take(self, places: Integers) -> Arrays:
        """Return int64 [windows, 192, 1], float32 [windows, 192, 3] and [windows, 192, 1]."""
        return dict(zip(self.names, self.gather(places), strict=False))

    def inverse_transform(self, values: Floats | Doubles, chosen: Integers) -> NDArray[np.float64]:
        """Return the scaled values [chosen, ...] of windows in the units of the data."""
        shape = (2, len(chosen), *[1] * (values.ndim - 1))
        mean, scale = self._scalers[chosen].T.reshape(shape)
        return np.asarray(values * scale + mean, dtype=np.float64)

    def targets(self, chosen: Integers) -> NDArray[np.float64]:
        """Return the target of windows, history and horizon [chosen, 192], in units of the data."""
        return self.inverse_transform(self.gather(chosen)[2][..., 0], chosen)

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Return the q-risk of each quantile; raise DataError for outputs not [windows, 24, 3]."""
        name, expected = self.names[-1], (len(self), HORIZON, len(QUANTILES))
        if (forecast := outputs[name]).shape != expected:
            raise DataError(f"{name} is {list(forecast.shape)} and should be {list(expected)}")
        everything = np.arange(len(self))
        actual = self.targets(everything)[:, HISTORY:]
        forecasts = np.moveaxis(self.inverse_transform(forecast, everything), -1, 0)
        risks = zip(QUANTILES, forecasts, strict=True)
        return {f"p{round(100 * q)}": q_risk(actual, values, q) for q, values in risks}

    def decisions(self, outputs: Arrays) -> NDArray[np.bool_]:
        """Return for each hour whether the P50 is above the target of the day before."""
        everything, name = np.arange(len(self)), self.names[-1]
        median = self.inverse_transform(outputs[name][..., QUANTILES.index(0.5)], everything)
        before = self.targets(everything)[:, HISTORY - HORIZON : HISTORY]
        return np.asarray(median > before).reshape(-1)


def q_risk(actual: Floats | Doubles, forecast: Floats | Doubles, q: float) -> float:
    """Return twice the quantile loss over the mean absolute target (arXiv 1912.09363, 6.2)."""
    above = actual - forecast
    loss = np.maximum(q * above, (q - 1) * above)
    return float(2 * loss.mean() / np.abs(actual).mean())


def _read_table(path: Path, variant: Variant) -> dict[str, NDArray[np.float64]]:
    """Read the columns that are needed, in order of series and time."""
    import polars as pl

    numbers = dict.fromkeys((ID, CATEGORY, TIME, variant.target, *variant.known), pl.Float64)
    with as_data_error(path):
        scan = pl.scan_csv(path, schema_overrides=numbers, ignore_errors=True)  # others are null
        header = scan.collect_schema().names()
        if missing := ", ".join(name for name in numbers if name not in header):
            others = [n for n, v in VARIANTS.items() if v is not variant and v.target in header]
            hint = f". Its columns are those of variant {others[0]}." if others else ""
            raise DataError(f"{path} lacks the column {missing}{hint}")
        table = scan.select(*numbers).sort(ID, TIME, maintain_order=True).collect()
    for column in table:
        finite = column.is_finite().fill_null(False).all()
        check_values(finite, path, column.name, "not a finite number")
    return {name: table[name].to_numpy() for name in numbers}


def _scalers(path: Path, codes: Integers) -> NDArray[np.float64]:
    """Read each series' mean and scale, [series, 2], by its own scaler or the common one, ''."""
    scalers, moments = pickles.read(path), np.empty((len(codes), 2))
    if not isinstance(scalers, dict):
        raise DataError(f"{path} is a {type(scalers).__name__}, not a dict of scalers")
    for index, code in enumerate(codes):
        scaler: Any = scalers.get(code, scalers.get(""))
        try:
            moments[index] = scaler.mean_.item(), scaler.scale_.item()
        except (AttributeError, ValueError):
            raise DataError(f"{path} has no scaler of one target for id {code}") from None
        mean, scale = moments[index]
        if not (np.isfinite([mean, scale]).all() and scale > 0):
            raise DataError(f"{path} has an invalid scaler for id {code}: {scale} around {mean}")
    return moments
