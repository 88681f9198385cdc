"""How a table of hourly series becomes the folder that NVIDIA's preprocessing writes."""

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.errors import DataError
from helpers.models.tft.variants import CATEGORY, ID, LENGTH, SPLITS, TIME, Variant

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Days = tuple[tuple[int, int], ...]


def prepare(table: "DataFrame", variant: Variant, days: Days, folder: Path) -> None:
    """Encode, split, scale and write train, valid and test as CSV and binary, with the scalers.

    `table` has a row for each hour of each series: `id`, `categorical_id`, the split column, the
    known inputs and the target. `days` are [first, last) of the three splits. Series of fewer than
    192 hours in a split are left out of it, and so are those that train lacks, having no scaler.
    Raises DataError if nothing is left of a split, or more series than the network has embeddings.
    """
    from sklearn.preprocessing import LabelEncoder  # type: ignore[import-untyped, unused-ignore]

    encoders = {ID: LabelEncoder().fit(table[ID].unique().astype(str))}
    table = table.assign(**{ID: _encoded(encoders[ID], table[ID])})
    splits = _split(table, variant, days)
    kept = np.concatenate([split[CATEGORY].unique().astype(str) for split in splits.values()])
    encoders[CATEGORY] = LabelEncoder().fit(kept)
    count = len(encoders[CATEGORY].classes_)
    if count > variant.cardinality:
        raise DataError(f"{count} series, and the network knows {variant.cardinality}")
    real, target = (_fit(splits["train"], columns, variant) for columns in _scaled(variant))
    for name, split in splits.items():
        codes = _encoded(encoders[CATEGORY], split[CATEGORY])
        scaled = split.assign(**{CATEGORY: codes}).reset_index(drop=True)
        for columns, fitted in zip(_scaled(variant), (real, target), strict=True):
            scaled[columns] = _scale(scaled, columns, fitted)
        _write(scaled, variant, folder / name)
    for name, content in (("real_scalers", real), ("tgt_scalers", target)):
        _store(folder / name, content)
    _store(folder / "cat_encodings", {CATEGORY: encoders[CATEGORY]})
    _store(folder / "id_encoders", {ID: encoders[ID]})


def _split(table: "DataFrame", variant: Variant, days: Days) -> dict[str, "DataFrame"]:
    splits: dict[str, DataFrame] = {}
    day = table[variant.split_column]
    for name, (first, last) in zip(SPLITS, days, strict=True):
        among = set(splits["train"][ID]) if splits else None
        splits[name] = _whole(table[(day >= first) & (day < last)], among)
        if splits[name].empty:
            raise DataError(
                f"no series has {LENGTH} hours in the days {first} to {last - 1} of {name}"
            )
    return splits


def _encoded(encoder: Any, column: "Series[Any]") -> Any:
    """Give the place of each value in the order of all of them as text."""
    places, values = column.factorize()
    return encoder.transform(values.astype(str))[places]


def _whole(split: "DataFrame", among: set[int] | None) -> "DataFrame":
    """Keep the series that are long enough and, if given, among others; in order of id and time."""
    hours = split.groupby(ID)[ID].transform("size")
    chosen = hours >= LENGTH
    if among is not None:
        chosen &= split[ID].isin(among)
    return split[chosen].sort_values([ID, TIME], kind="stable")


def _scaled(variant: Variant) -> tuple[list[str], list[str]]:
    return list(variant.known), [variant.target]


def _fit(train: "DataFrame", columns: list[str], variant: Variant) -> dict[Any, Any]:
    """Fit a StandardScaler for each id, or one for all under the key ''."""
    from sklearn.preprocessing import StandardScaler

    if not variant.scaled_per_id:
        return {"": StandardScaler().fit(train[columns].to_numpy(float))}
    return {
        int(code): StandardScaler().fit(rows[columns].to_numpy(float))
        for code, rows in train.groupby(ID)
    }


def _scale(split: "DataFrame", columns: list[str], fitted: dict[Any, Any]) -> Any:
    """Scale to float32, which is what the network reads and a third of the digits to write."""
    values = split[columns].to_numpy(float)
    if "" in fitted:
        return fitted[""].transform(values).astype(np.float32)
    codes = split[ID].to_numpy()
    means = np.zeros((codes.max() + 1, len(columns)))
    scales = np.ones_like(means)
    for code, scaler in fitted.items():
        if code < len(means):
            means[code], scales[code] = scaler.mean_, scaler.scale_
    return ((values - means[codes]) / scales[codes]).astype(np.float32)


def _write(split: "DataFrame", variant: Variant, path: Path) -> None:
    """Write the rows as CSV and, by series, as float32 viewed as int32."""
    split.to_csv(path.with_suffix(".csv"))
    columns = [ID, TIME, variant.target, *variant.known, CATEGORY]
    values = split[columns].to_numpy(np.float32)
    ends = np.flatnonzero(np.diff(split[ID].to_numpy())) + 1
    arrays = [part.view(np.int32) for part in np.split(values, ends)]
    _store(path, arrays)


def _store(path: Path, content: Any) -> None:
    path.with_suffix(".bin").write_bytes(pickle.dumps(content, protocol=4))
