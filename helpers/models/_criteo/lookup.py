"""The lookup of the embeddings, in memory that is mapped from files; pages are read when used.

It imports nothing of this package: a model repository takes this file along. A hierarchical store
can replace it with a `load` of the same signature. It has to run in Python 3.8, which the images of
older releases have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # Python 3.8 cannot read these types
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Ids = NDArray[np.integer[Any]]

TABLES, SCALES, LAYOUT = "tables.npy", "scales.npy", "tables.json"
INPUT, OUTPUT = "input_1", "output_1"
PIECE = 128  # samples that are widened at a time: their narrow rows stay in a core's cache


class Lookup:
    """The tables of the features, float32 [rows, width] each, which may be mapped from files."""

    def __init__(self, tables: list[NDArray[np.float32]]) -> None:
        self._tables = tables
        self._rows = np.array([len(table) for table in tables], dtype=np.int64)

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float32]]:
        """Map `input_1`, whole numbers [batch, tables], to `output_1`, float32 [batch, tables x
        width]: the rows of a sample one after the other.

        Raises ValueError naming the feature and the id, if an id is outside its table.
        """
        ids = np.asarray(inputs[INPUT])
        if ids.ndim != 2 or ids.shape[1] != len(self._rows) or ids.dtype.kind not in "iu":
            raise ValueError(
                f"{INPUT} is {ids.dtype} {list(ids.shape)} and should be whole numbers "
                f"[batch, {len(self._rows)}]"
            )
        outside = (ids < 0) | (ids >= self._rows)
        if outside.any():
            sample, feature = np.argwhere(outside)[0]
            raise ValueError(
                f"{INPUT} has the id {ids[sample, feature]} for feature {feature}, whose table "
                f"has the rows 0 to {self._rows[feature] - 1}"
            )
        return {OUTPUT: self.rows_of(ids)}

    def rows_of(self, ids: Ids) -> NDArray[np.float32]:
        """Return [batch, tables x width] for ids [batch, tables] that have a row."""
        vectors = [table[ids[:, feature]] for feature, table in enumerate(self._tables)]
        return np.concatenate(vectors, axis=1)


class JoinedLookup(Lookup):
    """All tables concatenated in one array, so that one call copies all rows.

    Rows are float32, float16, or int8 with a scale each; the output is float32.
    """

    def __init__(self, path: Path) -> None:
        layout = json.loads((path / LAYOUT).read_text())
        cardinalities, dtype = layout["cardinalities"], layout.get("dtype", "float32")
        mapped = np.load(path / TABLES, mmap_mode="r", allow_pickle=False)
        if mapped.dtype != dtype or mapped.ndim != 2 or len(mapped) != sum(cardinalities):
            raise ValueError(
                f"{path / TABLES} is {mapped.dtype} {list(mapped.shape)}, but {LAYOUT} has "
                f"{sum(cardinalities)} rows of {dtype}"
            )
        self._table, self._scales = np.asarray(mapped), None
        if dtype == "int8":
            self._scales = np.asarray(np.load(path / SCALES, mmap_mode="r", allow_pickle=False))
            if self._scales.dtype != np.float32 or self._scales.shape != (len(mapped),):
                raise ValueError(
                    f"{path / SCALES} is {self._scales.dtype} {list(self._scales.shape)}, but "
                    f"there are {len(mapped)} rows"
                )
        ends = np.cumsum(cardinalities, dtype=np.int64)
        super().__init__(np.split(self._table, ends[:-1]))
        self._first = ends - self._rows

    def rows_of(self, ids: Ids) -> NDArray[np.float32]:
        samples, features, width = *ids.shape, self._table.shape[1]
        vectors, rows = np.empty((samples, features, width), dtype=np.float32), ids + self._first
        if self._table.dtype == np.float32:
            # every id is inside: "clip" only saves the copy that numpy's own check of them needs
            np.take(self._table, rows, axis=0, out=vectors, mode="clip")
            return vectors.reshape(samples, features * width)
        for start in range(0, samples, PIECE):
            piece, target = rows[start : start + PIECE], vectors[start : start + PIECE]
            held = np.take(self._table, piece, axis=0, mode="clip")
            if self._scales is None:
                target[:] = held
            else:
                np.multiply(held, self._scales[piece][..., None], out=target)
        return vectors.reshape(samples, features * width)


def load(path: Path, threads: int, device: str) -> Lookup:
    """Open the folder `path`, which has `tables.npy`, [rows of all tables, width], and
    `tables.json`, {"cardinalities": the rows of each, "dtype": float32 by default}. For int8 it
    also has `scales.npy`, float32 [rows of all tables].

    One thread copies rows, on the CPU, whatever `threads` and `device` are.
    """
    return JoinedLookup(path)
