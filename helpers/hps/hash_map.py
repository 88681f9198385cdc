"""The volatile database in this process: a table's rows, in partitions that evict on their own."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from .table import Database

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .files import Keys, Places, Vectors

FREE = -1
FULL = 0.5  # share of an index's slots that are taken, at most
GROWTH = 1.15  # of the vectors: more would cost memory, less time


def index_bytes(rows: int) -> int:
    """Count the bytes of an index of `rows`: a key and a number in each of its slots."""
    slots = 16
    while rows > FULL * slots:
        slots *= 2
    return 12 * slots


class Index:
    """Whole numbers 0, 1, 2 ... for different keys, by open addressing with linear probes."""

    def __init__(self) -> None:
        self._allocate(4)

    def _allocate(self, bits: int) -> None:
        self._bits, self._taken = bits, 0
        self._keys = np.zeros(2**bits, np.int64)
        self._rows = np.full(2**bits, FREE, np.int32)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes

    def find(self, keys: Keys) -> NDArray[np.int32]:
        """Return the number of each key [n]; -1 for those that have none."""
        rows = np.full(len(keys), FREE, np.int32)
        todo, slots = np.arange(len(keys)), self._slots(keys)
        while len(todo):
            candidates = self._rows[slots]
            same = (self._keys[slots] == keys[todo]) & (candidates != FREE)
            rows[todo[same]] = candidates[same]
            on = (candidates != FREE) & ~same
            todo, slots = todo[on], (slots[on] + 1) & (len(self._keys) - 1)
        return rows

    def add(self, keys: Keys, rows: NDArray[np.int32]) -> None:
        """Set the numbers of different keys [n], none of which has one."""
        while self._taken + len(keys) > FULL * len(self._keys):
            used = self._rows != FREE
            before = self._keys[used], self._rows[used]
            self._allocate(self._bits + 1)
            self.add(*before)
        self._taken += len(keys)
        todo, slots = np.arange(len(keys)), self._slots(keys)
        while len(todo):
            free = self._rows[slots] == FREE
            self._rows[slots[free]] = rows[todo[free]]  # of several for one slot the last one wins
            self._keys[slots[free]] = keys[todo[free]]
            lost = ~free | (self._rows[slots] != rows[todo])
            todo, slots = todo[lost], (slots[lost] + 1) & (len(self._keys) - 1)

    def _slots(self, keys: Keys) -> Places:
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        slots: NDArray[np.int64] = (mixed >> np.uint64(64 - self._bits)).astype(np.int64)
        return slots


class HashMap(Database):
    """Rows of float32 [width] by key, in `partitions` of at most `margin` rows.

    A partition with more rows evicts some by `policy`, down to `target` of the margin.
    "evict_least_used" counts the reads of a row. "evict_oldest" uses the time of its write or, with
    `touch`, of its last read. "evict_random" needs neither.
    """

    def __init__(
        self,
        width: int,
        partitions: int = 16,
        margin: int = 2**64 - 1,
        policy: str = "evict_random",
        target: float = 0.8,
        touch: bool = False,
    ) -> None:
        self._partitions, self._margin = partitions, margin
        self._policy, self._target, self._touch = policy, target, touch
        self._index = Index()
        self._keys = np.empty(0, np.int64)
        self._vectors = np.empty((0, width), np.float32)
        self._uses = np.empty(0 if policy == "evict_random" else 1, np.int64)  # or the last time
        self._count = self._time = 0
        self._random = np.random.default_rng(0)
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        arrays = (self._index, self._keys, self._vectors, self._uses)
        return sum(array.nbytes for array in arrays)

    def reserve(self, rows: int) -> None:
        with self._lock:
            self._resize(rows)

    def insert(self, keys: Keys, vectors: Vectors) -> None:
        """Write vectors [n, width] of keys [n]; of a repeated key the last vector is kept."""
        keys, last = np.unique(keys[::-1], return_index=True)
        vectors = vectors[len(vectors) - 1 - last]
        with self._lock:
            rows = self._index.find(keys)
            new = np.flatnonzero(rows == FREE)
            rows[new] = np.arange(self._count, self._count + len(new))
            if self._count + len(new) > len(self._keys):
                self._resize(int(GROWTH * (self._count + len(new))) + 16)
            self._count += len(new)
            self._index.add(keys[new], rows[new])
            self._keys[rows], self._vectors[rows] = keys, vectors
            self._time += 1
            if self._policy == "evict_oldest":
                self._uses[rows] = self._time
            elif self._policy == "evict_least_used":
                self._uses[rows[new]] = 0
            if self._count > self._margin:  # else no partition has as many
                self._evict()

    def fetch(self, keys: Keys, out: Vectors) -> Places:
        with self._lock:
            rows = self._index.find(keys)
            present = rows != FREE
            out[present] = self._vectors[rows[present]]
            self._time += 1
            if self._policy == "evict_oldest" and self._touch:
                self._uses[rows[present]] = self._time
            elif self._policy == "evict_least_used":
                np.add.at(self._uses, rows[present], 1)
        return np.flatnonzero(~present)

    def keys(self) -> Keys:
        with self._lock:
            return self._keys[: self._count].copy()

    def _resize(self, rows: int) -> None:
        """Lengthen the arrays in place: the kernel moves pages, not bytes."""
        if rows > len(self._keys):
            self._keys.resize(rows, refcheck=False)
            self._vectors.resize((rows, self._vectors.shape[1]), refcheck=False)
            if self._policy != "evict_random":
                self._uses.resize(rows, refcheck=False)

    def partition_of(self, keys: Keys) -> Places:
        """Return the partition of each key [n]."""
        mixed = (keys.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(32)
        partitions: NDArray[np.int64] = (mixed % np.uint64(self._partitions)).astype(np.int64)
        return partitions

    def _evict(self) -> None:
        count, partitions = self._count, self.partition_of(self._keys[: self._count])
        sizes = np.bincount(partitions, minlength=self._partitions)
        keep = np.ones(count, bool)
        for partition in np.flatnonzero(sizes > self._margin):
            rows = np.flatnonzero(partitions == partition)
            surplus = len(rows) - int(self._target * self._margin)
            if self._policy == "evict_random":
                gone = self._random.choice(rows, surplus, replace=False)
            else:
                gone = rows[np.argsort(self._uses[rows], kind="stable")[:surplus]]
            keep[gone] = False
        self._count = left = int(keep.sum())
        if left == count:
            return
        holes = np.flatnonzero(~keep[:left])  # filled from the end
        movers = left + np.flatnonzero(keep[left:])
        for array in (self._keys, self._vectors, self._uses):
            if len(array) >= count:
                array[holes] = array[movers]
        self._index = Index()
        self._index.add(self._keys[:left], np.arange(left, dtype=np.int32))
