"""The runtime of the preprocessing: a function from arrays to arrays, in a module of its folder.

It imports nothing of this package: a model repository takes this file along.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

FILE = "function.json"


class Preprocessing:
    """The function `module:name` whose module is in `folder`, with other files that it reads."""

    def __init__(self, folder: Path, function: str) -> None:
        module, _, name = function.partition(":")
        path = folder / f"{module}.py"
        spec = importlib.util.spec_from_file_location(f"preprocessing_{module}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a module")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        self._function = getattr(loaded, name)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Map what a client sends to the network's inputs, [batch, ...] each, by name."""
        outputs = self._function(dict(inputs))
        if not isinstance(outputs, dict):
            raise TypeError(f"it returns no dict of arrays, but {type(outputs).__name__}")
        return {name: np.ascontiguousarray(array) for name, array in outputs.items()}


def load(path: Path, threads: int, device: str) -> Preprocessing:
    """Load the folder `path`; the function decides about threads and runs on the CPU."""
    return Preprocessing(path, json.loads((path / FILE).read_text()))
