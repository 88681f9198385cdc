"""The user's model in its own runtime, with the tensor names that the runtime reports."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.errors import CheckpointError
from helpers.models import Arrays, Network, Tensor
from helpers.models._own import Own


class Source:
    """The model of a file or a function, described by `own`: the reference of every format."""

    lifted: tuple[str, ...] = ()  # outputs of the last call that got a dimension

    def __init__(self, user_model: Own, path: Path) -> None:
        self.own, self.path = user_model, path

    def ask(self, inputs: Arrays) -> Arrays:
        """Compute the outputs by name, with the dimensions of the source."""
        raise NotImplementedError

    def build(self, inputs: Sequence[Tensor]) -> Network:
        """Return the network that formats convert."""
        raise NotImplementedError

    def run(self, inputs: Arrays) -> Arrays:
        """Compute samples; raise CheckpointError if an output of the package is missing."""
        return self.shaped(inputs, self.ask)

    def shaped(
        self, inputs: Mapping[str, Any], ask: Callable[..., dict[str, Any]]
    ) -> dict[str, Any]:
        """Compute by `ask` without the dimensions that only Triton requires, and restore them."""
        spec = self.own.description
        feed = {name: a.squeeze(1) if name in spec.scalars else a for name, a in inputs.items()}
        outputs = ask(feed if spec.has_batch else {name: a.squeeze(0) for name, a in feed.items()})
        names = [output.name for output in spec.outputs] or [*outputs]
        if missing := set(names) - set(outputs):
            fault = f"{self.path} has the outputs {', '.join(outputs)}, but not {min(missing)}"
            raise CheckpointError(f"{fault}. Correct `outputs` in its model.yaml.")
        results = {name: outputs[name] if spec.has_batch else outputs[name][None] for name in names}
        self.lifted = tuple(name for name, a in results.items() if len(a.shape) == 1)
        return {name: a[:, None] if name in self.lifted else a for name, a in results.items()}
