"""The folder of NVIDIA's preprocessing, written from a table of hourly series."""

import pickle
from pathlib import Path

import numpy as np
import polars as pl

from helpers.errors import DataError
from helpers.models.tft.variants import CATEGORY, ID, LENGTH, SPLITS, TIME, Variant

Days = tuple[tuple[int, int], ...]


def prepare(table: pl.DataFrame, variant: Variant, days: Days, folder: Path) -> None:
    """Encode, split, scale and write train, valid and test as CSV and binary, with the scalers.

    `table` has a row for each hour of each series: `id`, the split column, the known inputs and the
    target. `days` are [first, last) of the three splits. Series of fewer than 192 hours in a split
    are left out of it, and so are those that train lacks, having no scaler. Raises DataError if a
    split is empty, or there are more series than the network has embeddings.
    """
    # loaded late, as it loads pandas
    from sklearn import preprocessing  # type: ignore[import-untyped, unused-ignore]

    names = table[ID].cast(pl.String).unique().sort()
    table = table.with_columns(pl.col(ID).cast(pl.String).cast(pl.Enum(names))).sort(ID, TIME)
    splits = _split(table, variant, days)
    ids = splits["train"][ID].unique().sort().cast(pl.String)
    if len(ids) > variant.cardinality:
        raise DataError(f"it has {len(ids)} series, but the network has {variant.cardinality}")
    for file, column, series in (("id_encoders", ID, names), ("cat_encodings", CATEGORY, ids)):
        _store(folder / file, {column: preprocessing.LabelEncoder().fit(series.to_numpy())})
    places = pl.col(ID).cast(pl.String).cast(pl.Enum(ids)).to_physical()
    for name, rows in splits.items():
        splits[name] = rows.with_columns(pl.col(ID).to_physical(), places.alias(CATEGORY))
    for file, columns in (("real_scalers", variant.known), ("tgt_scalers", (variant.target,))):
        scalers = {
            key: preprocessing.StandardScaler().fit(rows.select(columns).to_numpy())
            for key, rows in _by_scaler(splits["train"], variant).items()
        }
        _store(folder / file, scalers)
        for name, split in splits.items():
            parts = []
            for key, rows in _by_scaler(split, variant).items():
                scaled = scalers[key].transform(rows.select(columns).to_numpy())
                part = pl.from_numpy(scaled.astype(np.float32), schema=columns)
                parts.append(rows.with_columns(part.get_columns()))
            splits[name] = pl.concat(parts)
    for name, split in splits.items():
        _write(split, variant, folder / name)


def _split(table: pl.DataFrame, variant: Variant, days: Days) -> dict[str, pl.DataFrame]:
    splits: dict[str, pl.DataFrame] = {}
    for name, (first, last) in zip(SPLITS, days, strict=True):
        rows = table.filter(pl.col(variant.split_column).is_between(first, last - 1))
        rows = rows.filter(pl.len().over(ID) >= LENGTH)
        if splits:
            rows = rows.join(splits["train"], on=ID, how="semi", maintain_order="left")
        if rows.is_empty():
            days_of = f"in the days {first} to {last - 1} of {name}"
            raise DataError(f"no series has {LENGTH} hours {days_of}")
        splits[name] = rows
    return splits


def _by_scaler(rows: pl.DataFrame, variant: Variant) -> dict[int | str, pl.DataFrame]:
    """Divide rows into those that share a scaler: by series, or all of them under the key ''."""
    if not variant.scaled_per_id:
        return {"": rows}
    return {part[ID][0]: part for part in rows.partition_by(ID, maintain_order=True)}


def _write(split: pl.DataFrame, variant: Variant, path: Path) -> None:
    """Write the rows as CSV and, by series, as float32 viewed as int32."""
    columns = [ID, CATEGORY, *variant.known, variant.split_column, variant.target]
    split.select(columns).with_row_index("").write_csv(path.with_suffix(".csv"))
    time = pl.col(TIME).alias("time")  # of which there are two columns, as in NVIDIA's files
    numbers = split.select(ID, time, variant.target, *variant.known, CATEGORY).cast(pl.Float32)
    ends = np.flatnonzero(np.diff(split[ID])) + 1
    _store(path, np.split(numbers.to_numpy(order="c").view(np.int32), ends))


def _store(path: Path, content: object) -> None:
    with path.with_suffix(".bin").open("wb") as file:
        pickle.dump(content, file, protocol=4)
