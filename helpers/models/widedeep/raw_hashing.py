"""How an id becomes a row of an embedding's table: a hash, modulo the table's size.

NVIDIA's pipeline takes cuDF's hash, which exists on a GPU only. The rows that these functions give
are others, equally spread, and the same on every machine and with every version of every library.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = -1  # stands for an id that is missing, and is hashed as it is

_STEP, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def hash_numbers(numbers: NDArray[Any], size: int) -> NDArray[np.int32]:
    """Give the row, 0 to `size` - 1, of each whole number, taken as 64 bits in two's complement.

    The hash is the first output of SplitMix64 seeded with the number (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", 2014, figure 17, with the variant's constants).
    """
    mixed = numbers.astype(np.int64).view(np.uint64) + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(size)).astype(np.int32)


def hash_texts(texts: Iterable[str | None], size: int) -> NDArray[np.int32]:
    """Give the row of each text: the first 8 bytes of BLAKE2b, as a little-endian number.

    A text that is missing is hashed as the empty one.
    """
    digests = (blake2b((text or "").encode(), digest_size=8).digest() for text in texts)
    numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    return (numbers % np.uint64(size)).astype(np.int32)
