"""Choosing, cutting and joining samples: arrays by name with a leading batch dimension."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models import Arrays

# A function of a batch, such as the `run` of a session or client; or the outputs of all samples
Answers: TypeAlias = Callable[[Arrays], Arrays] | Arrays
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment


def spread(total: int, count: int | None = None) -> NDArray[np.int64]:
    """Choose `count` of `total` indices, ascending and evenly spaced; all without a count."""
    count = total if count is None else min(count, total)
    return np.arange(count) * total // max(count, 1)


def draw(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Draw `count` different indices below `total`, sorted; raise DataError if there are fewer."""
    if count > total:
        raise DataError(f"{count:,} training samples are needed, but the set has {total:,}")
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def take(arrays: Arrays, rows: slice | NDArray[np.int64]) -> Arrays:
    """Take some rows of every array."""
    return {name: array[rows] for name, array in arrays.items()}


def concatenate(batches: Iterable[Arrays]) -> Arrays:
    """Join batches, in order."""
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def answers(infer: Answers, batch: Arrays, places: NDArray[np.int64]) -> Arrays:
    """Return the outputs of `batch`, which are the samples at `places` of a set."""
    return infer(batch) if callable(infer) else take(infer, places)


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits as SplitMix64 does (Steele et al., OOPSLA 2014, figure 17, variant's constants)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))
