"""Functions for generating data sets and fitting checkpoints, common to all models."""

import time
from collections.abc import Mapping
from typing import SupportsFloat, TypeVar

from helpers.errors import DataError

REPORT_EVERY = 20  # steps
Value = TypeVar("Value")


def lookup_size(name: str, sets: Mapping[str, Value], otherwise: str) -> Value:
    """Look up the size of the generated set `name`, or raise a DataError that names all sets."""
    if name not in sets:
        raise DataError(f"Unknown data set '{name}'. Use one of {', '.join(sets)}{otherwise}.")
    return sets[name]


def lookup_recipe(name: str, recipes: Mapping[str, Value]) -> Value:
    """Look up how a checkpoint is fitted to the set `name`; raise DataError if there is no way."""
    if name not in recipes:
        names = ", ".join(recipes)
        raise DataError(f"No checkpoint can be fitted to '{name}'. Use one of {names}.")
    return recipes[name]


class TrainingLog:
    """The printed progress of a fit of `steps` steps."""

    def __init__(self, steps: int) -> None:
        self._steps, self._started = steps, time.perf_counter()

    def say(self, step: int, loss: SupportsFloat) -> None:
        """Print a line for every twentieth step, counted from 1, and for the last one."""
        if step % REPORT_EVERY == 0 or step == self._steps:
            seconds = time.perf_counter() - self._started
            print(f"step {step}/{self._steps}: loss {float(loss):.3f}, {seconds:.0f} s")
