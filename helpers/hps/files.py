"""NVIDIA's embedding folders: `key`, little-endian int64 [rows], and `emb_vector`, float32 [rows,
width], in one order. No other file has the number of rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Keys = NDArray[np.int64]
    Vectors = NDArray[np.float32]
    Places = NDArray[np.int64]  # indices of keys

KEYS, VECTORS = "key", "emb_vector"
CHUNK_BYTES = 64 * 2**20


class BadTable(ValueError):
    """A folder that is not an embedding table, in one line."""


def rows(folder: Path, width: int) -> int:
    """Count the rows of a folder whose vectors have `width` floats.

    Raises `BadTable` if a file is missing or cut off, or the two do not have as many rows.
    """
    sizes = []
    for name, size in ((KEYS, 8), (VECTORS, 4 * width)):
        path = folder / name
        if not path.is_file():
            raise BadTable(f"{path} is missing")
        count, rest = divmod(path.stat().st_size, size)
        if rest:
            raise BadTable(f"{path} has {path.stat().st_size} bytes, not a multiple of {size}")
        sizes.append(count)
    if sizes[0] != sizes[1]:
        raise BadTable(
            f"{folder} has {sizes[0]} keys and {sizes[1]} vectors of {width}. Check the width."
        )
    return sizes[0]


def read(folder: Path, width: int) -> Iterator[tuple[Keys, Vectors]]:
    """Yield a folder's rows in chunks of 64 MiB: keys [n] and vectors [n, width].

    Raises `BadTable` as `rows` does, for a repeated key, before the first chunk, and for a vector
    that is not finite.
    """
    count, step = rows(folder, width), max(1, CHUNK_BYTES // (4 * width))
    if count:
        _require_different(folder / KEYS)
    with (folder / KEYS).open("rb") as keys, (folder / VECTORS).open("rb") as vectors:
        for start in range(0, count, step):
            many = min(step, count - start)
            chunk = np.fromfile(vectors, "<f4", many * width).reshape(many, width)
            if not np.isfinite(chunk).all():
                row = start + int(np.argwhere(~np.isfinite(chunk))[0][0])
                raise BadTable(f"{folder / VECTORS} has a value in row {row} that is not finite")
            yield np.fromfile(keys, "<i8", many), chunk


def _require_different(path: Path) -> None:
    """Raise `BadTable` for a repeated key. Keys that are not in order are sorted in memory."""
    keys, step = np.memmap(path, "<i8", "r"), CHUNK_BYTES // 8
    chunks = (keys[start : start + step + 1] for start in range(0, len(keys), step))
    if all((chunk[1:] > chunk[:-1]).all() for chunk in chunks):
        return
    ordered = np.sort(keys)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise BadTable(f"{path} has the key {ordered[twice[0]]} twice")


def write(folder: Path, chunks: Iterable[tuple[Keys, Vectors]]) -> int:
    """Write a table's chunks to the new `folder`; return its number of rows."""
    folder.mkdir(parents=True)
    count = 0
    with (folder / KEYS).open("wb") as keys, (folder / VECTORS).open("wb") as vectors:
        for key, vector in chunks:
            key.astype("<i8").tofile(keys)
            np.ascontiguousarray(vector, "<f4").tofile(vectors)
            count += len(key)
    return count
