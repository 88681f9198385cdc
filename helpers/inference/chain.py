"""Sessions one after the other, each of which takes outputs of earlier ones: in this process, and
as the runtime of a served model, of which a repository takes this file along.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Tensors = dict[str, Any]  # arrays, or on a GPU PyTorch's tensors

FILE = "chain.json"
SHARED = ("counters", "configure", "close")  # of a session, which the adapter asks for


@dataclass(frozen=True)
class Step:
    """A session, and how the whole names its inputs and outputs: name -> the session's own."""

    session: Any
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    flat: bool = False  # whether inputs have no dimension for the batch


class Chain:
    """Steps that run in order."""

    def __init__(self, steps: Sequence[Step], on_device: bool = False) -> None:
        self._steps = steps
        # on a GPU, what a session leaves there goes to the next one there
        name = "run_on_device" if on_device else "run"
        self._calls = [getattr(each.session, name, each.session.run) for each in steps]

    def run(self, inputs: Tensors) -> Tensors:
        """Compute the last step's outputs, under the names that the whole has for them."""
        tensors = self.run_all(inputs)
        return {name: tensors[name] for name in self._steps[-1].outputs}

    def run_all(self, inputs: Tensors) -> Tensors:
        """Return every tensor that the whole has a name for: inputs, intermediate ones, outputs."""
        tensors = dict(inputs)
        for step, call in zip(self._steps, self._calls):  # noqa: B905
            own = {name: tensors[whole] for whole, name in step.inputs.items()}
            if step.flat:
                own = {name: values.reshape(-1) for name, values in own.items()}
            results = call(own)
            tensors.update({whole: results[name] for whole, name in step.outputs.items()})
        return tensors


def load(path: Path, threads: int, device: str) -> Chain:
    """Load the steps that the file `path` lists, each with its code, a module in a folder on
    `sys.path`: the adapter puts this one there.
    """
    steps = []
    for each in json.loads(path.read_text()):
        runtime = importlib.import_module(each["code"])
        session = runtime.load(path.parent / each["file"], threads, device)
        steps.append(Step(session, each["inputs"], each["outputs"], each["flat"]))
    chain = Chain(steps, on_device=device == "gpu")
    if device == "gpu":
        setattr(chain, "run_on_device", chain.run)  # noqa: B010
    for step in steps:
        for name in SHARED:
            if hasattr(step.session, name):
                setattr(chain, name, getattr(step.session, name))
    return chain
