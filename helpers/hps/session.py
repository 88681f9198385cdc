"""The store as a session with NVIDIA's tensors, for a model repository and for this process."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from .store import Store
from .updates import start_updates

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

KEYS, COUNTS, OUTPUT = "KEYS", "NUMKEYS", "OUTPUT0"
JSON = "sparse.json"
LOG = logging.getLogger("hps")


class Session:
    """Lookups in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float32]]:
        """Return `OUTPUT0`, float32 [lookups, keys x width], of `KEYS`, integers [lookups, keys],
        and `NUMKEYS`, [lookups, tables].

        It has the vectors of the first table's keys, then those of the second's, and so on. Raises
        ValueError for counts that do not fit the keys or the tables.
        """
        vectors = self.run_on_device(inputs)[OUTPUT]
        return {OUTPUT: vectors if isinstance(vectors, np.ndarray) else vectors.cpu().numpy()}

    def run_on_device(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Run as `run` does, but leave vectors of a cache on a GPU there."""
        keys, counts = (np.atleast_2d(np.asarray(inputs[name])) for name in (KEYS, COUNTS))
        if len(keys) != len(counts):
            raise ValueError(f"{KEYS} is {list(keys.shape)} and {COUNTS} {list(counts.shape)}")
        pairs = zip(keys.astype(np.int64, copy=False), counts.tolist())
        vectors = [self.store.lookup(*pair) for pair in pairs]
        if len(vectors) == 1:
            return {OUTPUT: vectors[0][None]}
        if isinstance(vectors[0], np.ndarray):
            return {OUTPUT: np.stack(vectors)}
        import torch

        return {OUTPUT: torch.stack(vectors)}

    def counters(self) -> dict[str, int]:
        """Return the counts of the lookups so far, for the server's metrics."""
        return {f"hps_{name}": value for name, value in vars(self.store.counts()).items()}

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Apply the parameters of the model's `config.pbtxt`: `exact` makes every lookup exact."""
        if parameters.get("exact"):
            self.store.insert_synchronously()

    def close(self) -> None:
        """End the store's threads, and close its databases."""
        self.store.close()


def _print(text: str) -> None:
    print(f"hps: {text}", flush=True)  # to the log of the server


def load(path: Path, threads: int, device: str, read_only: bool = False) -> Session:
    """Open the folder `path`: `sparse.json`, and the folders of the tables that it names.

    A second process passes `read_only`, and leaves shared databases as they are.
    """
    try:
        text = (path / JSON).read_text()
        content: Any = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))
    except ValueError as error:  # no JSON or no UTF-8
        raise ValueError(f"{path / JSON}: {error}") from None
    store = Store(content, path, threads, device, read_only, LOG.info if read_only else _print)
    if not read_only:
        start_updates(store)
    return Session(store)
