"""The embedding cache in a GPU's memory: `Cache` with PyTorch's tensors."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .cache import NEVER, WAYS, Cache, number_of_sets

if TYPE_CHECKING:
    from .files import Keys, Places, Vectors


class DeviceCache(Cache):
    """At least `rows` rows of float32 [width] on `device`, as PyTorch names it; otherwise `Cache`.

    It takes and returns arrays in this host's memory, as the rest of the store does.
    """

    def __init__(self, rows: int, width: int, device: str) -> None:
        import torch

        self._torch, self._device = torch, device
        self._sets = number_of_sets(rows)
        self._keys = torch.zeros((self._sets, WAYS), dtype=torch.int64, device=device)
        self._stamps = torch.full_like(self._keys, NEVER)
        self._vectors = torch.zeros((self._sets * WAYS, width), device=device)
        self._tick = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self._keys, self._stamps, self._vectors))

    def fetch(self, keys: Keys, out: Any) -> tuple[Places, int]:
        """Copy rows as `Cache.fetch` does; `out` may be a tensor on the device too."""
        with self._lock:
            places, rows = self._find(keys)
            self._tick += 1
            self._stamps.reshape(-1)[rows] = self._tick  # a view
            different = len(self._torch.unique(rows))
            if isinstance(out, np.ndarray):
                out[places] = self._vectors[rows].cpu().numpy()
            else:
                out[self._to_device(places)] = self._vectors[rows]
        return self._others(places, len(keys)), different

    def keys(self) -> Keys:
        with self._lock:
            held: Keys = self._keys[self._stamps != NEVER].cpu().numpy()
            return held

    def _to_device(self, array: Any) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _find(self, keys: Keys) -> tuple[Places, Any]:
        on_device = self._to_device(keys)
        sets = on_device % self._sets
        same = (self._keys[sets] == on_device[:, None]) & (self._stamps[sets] != NEVER)
        places, ways = same.nonzero(as_tuple=True)  # a key is in one row at most
        return places.cpu().numpy(), sets[places] * WAYS + ways

    def _store(self, rows: Any, vectors: Vectors) -> None:
        self._vectors[rows] = self._to_device(vectors)

    def _insert(self, keys: Keys, vectors: Vectors) -> int:
        torch, on_device = self._torch, self._to_device(keys)
        sets = on_device % self._sets
        order = torch.argsort(sets, stable=True).flip(0)  # the last of a set first
        grouped = sets[order]
        first = torch.searchsorted(-grouped, -grouped, right=False)
        rank = torch.arange(len(order), device=self._device) - first
        fits = rank < WAYS
        order, grouped, rank = order[fits], grouped[fits], rank[fits]
        oldest = torch.argsort(self._stamps[grouped], dim=1, stable=True)
        ways = oldest.gather(1, rank[:, None]).view(-1)
        evicted = int((self._stamps[grouped, ways] != NEVER).sum())
        self._keys[grouped, ways] = on_device[order]
        self._stamps[grouped, ways] = self._tick
        self._vectors[grouped * WAYS + ways] = self._to_device(vectors)[order]
        return evicted
