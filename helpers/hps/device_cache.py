"""The embedding cache in a GPU's memory: `Cache` over again, with PyTorch's tensors."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .cache import NEVER, WAYS, number_of_sets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.int64]
    Vectors = NDArray[np.float32]


class DeviceCache:
    """At least `rows` rows of float32 [width] on `device`, as PyTorch names it; otherwise `Cache`.

    It takes and gives arrays in this host's memory, as the rest of the store does.
    """

    def __init__(self, rows: int, width: int, device: str) -> None:
        import torch

        self._torch, self._device = torch, device
        self._sets = number_of_sets(rows)
        made: Any = {"device": device}
        self._keys = torch.zeros((self._sets, WAYS), dtype=torch.int64, **made)
        self._stamps = torch.full((self._sets, WAYS), NEVER, dtype=torch.int64, **made)
        self._vectors = torch.zeros((self._sets * WAYS, width), **made)
        self._tick = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Count the rows that hold a key."""
        return int((self._stamps != NEVER).sum())

    @property
    def nbytes(self) -> int:
        """What it takes in the device's memory."""
        return sum(each.nbytes for each in (self._keys, self._stamps, self._vectors))

    def take(self, keys: Keys, out: Any) -> tuple[NDArray[np.int64], int]:
        """Copy the rows of `keys` [n], which may repeat, to `out` [n, width], an array or a tensor
        on the device; what it then has for the missing means nothing. Give the places of the
        missing in `keys`, and how many different keys were found.
        """
        with self._lock:
            rows, there = self._find(self._to_device(keys))
            self._tick += 1
            self._stamps.view(-1)[rows[there]] = self._tick
            different = len(self._torch.unique(rows[there]))
            if isinstance(out, np.ndarray):
                found = there.cpu().numpy()
                out[found] = self._vectors[rows[there]].cpu().numpy()
            else:
                out[there] = self._vectors[rows[there]]
        return (~there).nonzero().view(-1).cpu().numpy(), different

    def put(self, keys: Keys, vectors: Vectors, only_present: bool = False) -> int:
        """Write vectors [n, width] of different keys [n]: over those that are here, and else,
        unless `only_present`, in place of the least recently used. Where more keys than a set has
        rows fall into it, the last ones stay. Give how many keys were evicted.
        """
        some, values = self._to_device(keys), self._to_device(vectors)
        with self._lock:
            rows, there = self._find(some)
            self._vectors[rows[there]] = values[there]
            if only_present or bool(there.all()):
                return 0
            self._tick += 1
            return self._insert(some[~there], values[~there])

    def keys(self) -> Keys:
        """Give all keys that it holds."""
        with self._lock:
            found: Keys = self._keys[self._stamps != NEVER].cpu().numpy()
            return found

    def _to_device(self, array: Any) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _find(self, keys: Any) -> tuple[Any, Any]:
        """Give the row of each key, and which have one."""
        sets = keys % self._sets
        same = (self._keys[sets] == keys[:, None]) & (self._stamps[sets] != NEVER)
        return sets * WAYS + same.int().argmax(1), same.any(1)

    def _insert(self, keys: Any, vectors: Any) -> int:
        torch = self._torch
        sets = keys % self._sets
        order = torch.argsort(sets, stable=True).flip(0)  # the last of a set first
        grouped = sets[order]
        first = torch.searchsorted(-grouped, -grouped, right=False)
        rank = torch.arange(len(order), device=self._device) - first
        kept = rank < WAYS
        order, grouped, rank = order[kept], grouped[kept], rank[kept]
        oldest = torch.argsort(self._stamps[grouped], dim=1, stable=True)
        ways = oldest.gather(1, rank[:, None]).view(-1)
        evicted = int((self._stamps[grouped, ways] != NEVER).sum())
        self._keys[grouped, ways] = keys[order]
        self._stamps[grouped, ways] = self._tick
        self._vectors[grouped * WAYS + ways] = vectors[order]
        return evicted
