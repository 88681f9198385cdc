"""A model of the user's as it comes: run by its own runtime, with the names that this reports."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.errors import CheckpointError
from helpers.models import Arrays, Network, Tensor
from helpers.models._own import Own


class Source(ABC):
    """What a file or a function holds, which `own` describes.

    It is the reference of every format, so nothing that is exported takes part in `run`.
    """

    def __init__(self, own: Own, path: Path) -> None:
        self.own, self.path = own, path

    @abstractmethod
    def ask(self, inputs: Arrays) -> Arrays:
        """Compute tensors of the shapes that the source takes, each by its name."""

    @abstractmethod
    def build(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Network:
        """Give what formats are made of; with all outputs, if none is named."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Compute samples: dimensions that only Triton wants are taken away, and put back."""
        has_batch, scalars = self.own.HAS_BATCH, self.own.SCALARS
        given = {name: a.squeeze(1) if name in scalars else a for name, a in inputs.items()}
        found = self.ask(given if has_batch else {name: a.squeeze(0) for name, a in given.items()})
        return found if has_batch else {name: a[None] for name, a in found.items()}

    def run(self, inputs: Arrays) -> Arrays:
        """Compute samples, all outputs with two dimensions at least."""
        found = self.chosen(self.answer(inputs), [each.name for each in self.own.OUTPUTS])
        return {name: a[:, None] if a.ndim == 1 else a for name, a in found.items()}

    def chosen(self, found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Choose outputs by their names, in order; all if no name is given.

        Raises CheckpointError if one is missing.
        """
        if missing := set(names) - set(found):
            fault = f"{self.path} has the outputs {', '.join(found)}, and not {min(missing)}"
            raise CheckpointError(f"{fault}: its package names them in OUTPUTS")
        return {name: found[name] for name in names or found}
