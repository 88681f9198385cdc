"""The session of a no-op model, which computes nothing: it returns arrays that it made before.

It imports nothing of this package: the no-op model's repository holds this file as its runtime.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

FILE = "identity.json"


class Identity:
    """Outputs of zeros, as many rows as a request has samples.

    A sample has `elements` in the input `counted`. `outputs` gives the dtype and shape of each; -1
    stands for the number of samples.
    """

    def __init__(
        self, counted: str, elements: int, outputs: Mapping[str, tuple[str, Sequence[int]]]
    ) -> None:
        self._counted, self._elements, self._outputs = counted, elements, outputs
        self._answers: dict[int, Arrays] = {}  # by the number of samples

    def run(self, inputs: Arrays) -> Arrays:
        samples = prod(inputs[self._counted].shape) // self._elements
        if samples not in self._answers:
            self._answers[samples] = {
                name: np.zeros([samples if size < 0 else size for size in shape], dtype)
                for name, (dtype, shape) in self._outputs.items()
            }
        return self._answers[samples]


def load(path: Path, threads: int, device: str) -> Identity:
    """Read the file `path`: the arguments of `Identity`."""
    return Identity(**json.loads(path.read_text()))
