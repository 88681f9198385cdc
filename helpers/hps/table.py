"""One embedding table on its levels: a cache over a volatile over a persistent database.

A lookup queries the cache. If it has at least `threshold` of the different keys, the others get the
default now and are fetched in the background (asynchronous insertion). Otherwise they are fetched
first, and the output is exact.
"""

from __future__ import annotations

import logging
import queue
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .files import Keys, Places, Vectors

LOG = logging.getLogger("hps")
MAX_QUEUED_REQUESTS = 64  # requests whose missing keys are queued; those of further ones are not
ROWS_PER_INSERT = 4096  # rows that are written to the cache at a time, while lookups wait


class Unavailable(Exception):
    """A database that does not respond, in one line."""


class Database:
    """A level below the cache, of one table. Its methods raise `Unavailable` without a response."""

    is_persistent = False  # whether it is the level that has all rows
    outlives_process = False  # whether a server that starts may find rows in it

    def insert(self, keys: Keys, vectors: Vectors) -> None:
        """Write vectors [n, width] of different keys [n]."""
        raise NotImplementedError

    def fetch(self, keys: Keys, out: Vectors) -> Places:
        """Copy rows of different keys [n] to `out` [n, width]; return indices of missing keys."""
        raise NotImplementedError

    def reserve(self, rows: int) -> None:
        """Allocate memory for `rows` in all, at once."""

    def clear(self) -> None:
        """Remove all rows."""

    def load_token(self) -> str:
        """Return the token that `set_load_token` wrote, or an empty string."""
        return ""

    def set_load_token(self, text: str) -> None:
        """Write the token of the loaded rows, after all of them were loaded."""


@dataclass
class Counts:
    """Counts of a table's lookups: keys, with repetitions, and different ones."""

    keys: int = 0
    different: int = 0
    hits: int = 0  # of the different ones, in the cache
    defaults: int = 0  # of the keys, that got the default
    fetched: int = 0  # different ones that a request waited for

    def add(self, other: Counts) -> None:
        """Add the counts of one lookup."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def hit_rate(self) -> float:
        """Return the share of the different keys that the cache had."""
        return self.hits / self.different if self.different else 1.0


def as_bytes(array: Keys | Vectors, dtype: str) -> list[bytes]:
    """Return the bytes of each key or vector of an array, in the byte order of `dtype`."""
    if not len(array):
        return []
    row_bytes = np.ascontiguousarray(array, dtype)
    return row_bytes.view(f"V{row_bytes[0].nbytes}").ravel().tolist()


def copy_blobs(blobs: Sequence[bytes | None], places: Places, out: Vectors) -> Places:
    """Copy vectors that a database returned to the rows `places` of `out`; return those without."""
    width = out.shape[1]
    found = {i: blob for i, blob in enumerate(blobs) if blob and len(blob) == 4 * width}
    if present := list(found):
        out[places[present]] = np.frombuffer(b"".join(found.values()), "<f4").reshape(-1, width)
    return np.delete(places, present)


def _write(out: Any, places: Places, values: Any) -> None:
    """Write rows to an array, or to a tensor on a GPU."""
    if isinstance(out, np.ndarray):
        out[places] = values
    else:
        import torch

        where = torch.from_numpy(places).to(out.device)
        out[where] = torch.as_tensor(values, device=out.device)


class Table:
    """One table: its `cache`, or None, over `levels`, the upper one first. With `promote`,
    what only the lower level had is written to the upper one. No lookup that
    began before an update replaces a new row by an old one.
    """

    def __init__(
        self,
        name: str,
        width: int,
        levels: Sequence[Database],
        cache: Any = None,
        default: float = 0.0,
        threshold: float = 0.9,
        promote: bool = False,
    ) -> None:
        self.name, self.width, self.cache = name, width, cache
        self.levels, self.default, self.threshold = levels, np.float32(default), threshold
        self.counts = Counts()
        self._lift = promote
        self._counting = Lock()
        self._lock = Lock()
        self._updates = 0  # begun and ended ones: odd while one is under way
        self._updating = Lock()
        self._pending: queue.Queue[Keys | None] = queue.Queue(MAX_QUEUED_REQUESTS)

    def lookup(self, keys: Keys, out: Any) -> None:
        """Write the vectors of keys [n], also repeated ones, to `out` [n, width] on its device."""
        if self.cache is None:
            missing, hits = np.arange(len(keys)), 0
        else:
            missing, hits = self.cache.fetch(keys, out)
        missing_keys, places = np.unique(keys[missing], return_inverse=True)
        counts = Counts(len(keys), hits + len(missing_keys), hits)
        if len(missing_keys) and self.cache is not None and counts.hit_rate >= self.threshold:
            _write(out, missing, self.default)
            counts.defaults = len(missing)
            with suppress(queue.Full):
                self._pending.put_nowait(missing_keys)
        elif len(missing_keys):
            vectors, present = self.insert(missing_keys)
            _write(out, missing, vectors[places])
            counts.fetched = len(missing_keys)
            counts.defaults = int((~present)[places].sum())
        with self._counting:
            self.counts.add(counts)

    def insert(self, keys: Keys, only_present: bool = False) -> tuple[Vectors, NDArray[np.bool_]]:
        """Query the databases, the upper one first, for different keys [n], and insert their rows
        into the cache.

        Return the vectors [n, width], with the default for missing keys, and which keys are
        present. Raises `Unavailable` if the last database does not respond.
        """
        with self._lock:
            before = self._updates
        vectors = np.full((len(keys), self.width), self.default, np.float32)
        missing = np.arange(len(keys))
        for depth, level in enumerate(self.levels):
            if not len(missing):
                break
            part = np.empty((len(missing), self.width), np.float32)
            try:
                absent = level.fetch(keys[missing], part)
            except Unavailable as error:
                if level is self.levels[-1]:
                    raise
                LOG.warning("%s", error)
                continue
            found, rows = np.delete(missing, absent), np.delete(part, absent, axis=0)
            vectors[found] = rows
            missing = missing[absent]
            if depth and self._lift and len(found):
                with self._lock, suppress(Unavailable):
                    if before == self._updates and not before % 2:
                        self.levels[0].insert(keys[found], rows)
        present = np.ones(len(keys), bool)
        present[missing] = False
        if self.cache is not None:
            present_keys, rows = keys[present], vectors[present]
            for start in range(0, len(present_keys), ROWS_PER_INSERT):
                piece = slice(start, start + ROWS_PER_INSERT)
                with self._lock:
                    if before == self._updates and not before % 2:
                        self.cache.insert(present_keys[piece], rows[piece], only_present)
        return vectors, present

    def run_insert_worker(self) -> None:
        """Fetch and insert the keys that asynchronous lookups missed, until `stop_worker`."""
        while (keys := self._pending.get()) is not None:
            try:
                self.insert(keys)
            except Exception as error:  # a database may be available again later
                LOG.warning("%s: %s", self.name, error)
            finally:
                self._pending.task_done()
        self._pending.task_done()

    def drain(self) -> None:
        """Wait until all keys that were missing so far are inserted."""
        self._pending.join()

    def stop_worker(self) -> None:
        """End `run_insert_worker` after the request that it is inserting; drop those that wait."""
        with suppress(queue.Empty):
            while True:
                self._pending.get_nowait()
                self._pending.task_done()
        self._pending.put(None)

    def refresh(self, share: float = 1.0) -> None:
        """Fetch all cached keys again, `share` of the cache's rows at a time."""
        keys = self.cache.keys() if self.cache is not None else np.empty(0, np.int64)
        step = max(1, int(share * len(keys)))
        for start in range(0, len(keys), step):
            self.insert(keys[start : start + step], only_present=True)

    def update(self, keys: Keys, vectors: Vectors) -> None:
        """Write new vectors [n, width] of keys [n] to all databases, the lowest first, and replace
        those in the cache. Of a repeated key the last vector is kept.

        Raises `Unavailable` if a database does not respond: the same update has to be repeated.
        """
        keys, last = np.unique(keys[::-1], return_index=True)
        vectors = vectors[len(vectors) - 1 - last]
        with self._updating:
            with self._lock:
                self._updates += 1
            try:
                for level in reversed(self.levels):
                    level.insert(keys, vectors)
            finally:
                with self._lock:
                    if self.cache is not None:
                        self.cache.insert(keys, vectors, only_present=True)
                    self._updates += 1
