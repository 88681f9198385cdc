"""How an id becomes a row of an embedding's table: a 64-bit hash, modulo the table's size.

NVIDIA's pipeline uses cuDF's hash, which exists on a GPU only. This one gives other rows, equally
spread, and the same ones on every machine and with every version of every library.
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from polars import Expr, Series

MISSING = -1  # stands for a number that is missing, and is hashed as it is

_STEP, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def row_of(ids: "Expr", size: int) -> "Expr":
    """Give the row, 0 to `size` - 1 (Int32), of each whole number or text."""
    import polars as pl

    return (hashed(ids) % size).cast(pl.Int32)


def hashed(ids: "Expr") -> "Expr":
    """Give the hash (UInt64) of each whole number or text."""
    import polars as pl

    return ids.map_batches(_hash, return_dtype=pl.UInt64, is_elementwise=True)


def _hash(ids: "Series") -> "Series":
    """Hash numbers, taken as 64 bits in two's complement, with the first output of SplitMix64
    seeded with the number (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014, figure 17, with the variant's constants); texts with the first 8 bytes of BLAKE2b as a
    little-endian number, a missing one as the empty one.
    """
    import polars as pl

    if ids.dtype == pl.String:
        texts = ids.fill_null("")
        known = texts.unique()
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in known)
        hashes = pl.Series(np.frombuffer(digests, dtype="<u8"))
        return texts.replace_strict(known, hashes, return_dtype=pl.UInt64)
    mixed = ids.fill_null(MISSING).cast(pl.Int64).to_numpy().view(np.uint64) + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return pl.Series(ids.name, mixed ^ (mixed >> np.uint64(31)))
