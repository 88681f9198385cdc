"""The embedding cache: some of a table's rows in a set-associative array with LRU eviction."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .files import Keys, Places, Vectors

WAYS = 8  # rows of a set; its keys fill one line of a processor's cache
NEVER = -1  # the stamp of an empty row


def number_of_sets(rows: int) -> int:
    """Return the number of sets of a cache of at least `rows`. There are at least two, as an empty
    row of a set holds a key of another set.
    """
    return max(2, -(-rows // WAYS))


class Cache:
    """At least `rows` rows of float32 [width]; a key's set is its remainder, so that keys in
    sequence fill all sets alike. A reader never sees half of a vector.

    The rows of one way are adjacent. Adjacent rows of a set would put the hot rows, which have
    small keys, at distances of powers of two. They would evict one another from the CPU's caches.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._sets = number_of_sets(rows)
        self._keys = np.empty((self._sets, WAYS), np.int64)
        self._keys[:] = (np.arange(self._sets) + 1)[:, None] % self._sets  # no key of this set
        self._stamps = np.full(self._sets * WAYS, NEVER, np.int64)
        self._vectors = np.zeros((self._sets * WAYS, width), np.float32)
        self._first = np.zeros(self._sets * WAYS, np.int32)  # scratch: the last key of each row
        self._tick = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Count the rows that hold a key."""
        return int((self._stamps != NEVER).sum())

    @property
    def nbytes(self) -> int:
        arrays = (self._keys, self._stamps, self._vectors, self._first)
        return sum(array.nbytes for array in arrays)

    def fetch(self, keys: Keys, out: Vectors) -> tuple[Places, int]:
        """Copy the rows of `keys` [n], which may repeat, to `out` [n, width]; those of missing keys
        are undefined. Return the indices of missing keys, and the number of different present ones.
        """
        with self._lock:
            places, rows = self._find(keys)
            order = np.arange(len(rows), dtype=np.int32)
            self._first[rows] = order
            different = int(np.count_nonzero(self._first[rows] == order))
            self._tick += 1
            self._stamps[rows] = self._tick
            missing = self._others(places, len(keys))
            if len(missing):
                some, rows = rows, np.zeros(len(keys), np.int64)
                rows[places] = some
            np.take(self._vectors, rows, axis=0, out=out, mode="clip")
        return missing, different

    def insert(self, keys: Keys, vectors: Vectors, only_present: bool = False) -> int:
        """Write vectors [n, width] of different keys [n], and return how many keys were evicted.

        Present keys get new vectors. Unless `only_present`, the others replace the least recently
        used. If a set gets more keys than it has rows, the last ones are kept.
        """
        with self._lock:
            places, rows = self._find(keys)
            self._store(rows, vectors[places])
            if only_present or len(places) == len(keys):
                return 0
            missing = self._others(places, len(keys))
            self._tick += 1
            return self._insert(keys[missing], vectors[missing])

    def keys(self) -> Keys:
        with self._lock:
            held: Keys = self._keys.T.reshape(-1)[self._stamps != NEVER]
            return held

    def _find(self, keys: Keys) -> tuple[Places, Places]:
        """Return the indices of the present keys, and their rows."""
        sets: Any = self._set_of(keys)
        same = np.take(self._keys, sets, axis=0, mode="clip") == keys[:, None]
        hits = np.flatnonzero(same)  # a key is in one row at most
        places = hits // WAYS
        if len(places) < len(keys):
            sets = sets[places]
        return places, (hits & (WAYS - 1)) * self._sets + sets

    def _store(self, rows: Places, vectors: Vectors) -> None:
        self._vectors[rows] = vectors

    def _set_of(self, keys: Keys) -> Places:
        """Return the remainders of keys read as unsigned, which takes half the time."""
        remainders: Any = keys.view(np.uint64) % np.uint64(self._sets)
        return remainders.view(np.int64)  # type: ignore[no-any-return]

    @staticmethod
    def _others(places: Places, count: int) -> Places:
        if len(places) == count:
            return places[:0]
        return np.delete(np.arange(count), places)

    def _insert(self, keys: Keys, vectors: Vectors) -> int:
        sets = self._set_of(keys)
        order = np.argsort(sets, kind="stable")[::-1]  # the last of a set first
        grouped = sets[order]
        starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
        fits = rank < WAYS
        order, grouped, rank = order[fits], grouped[fits], rank[fits]
        stamps = self._stamps.reshape(WAYS, -1).T[grouped]
        ways = np.argsort(stamps, axis=1, kind="stable")[np.arange(len(order)), rank]
        rows: Any = ways * self._sets + grouped
        evicted = int((self._stamps[rows] != NEVER).sum())
        self._keys[grouped, ways] = keys[order]
        self._stamps[rows] = self._tick
        self._vectors[rows] = vectors[order]
        return evicted
