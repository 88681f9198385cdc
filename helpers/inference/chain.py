"""A sequence of sessions, each of which takes outputs of earlier ones. It runs in this process, or
as the runtime of a served model, whose repository has a copy of this file.
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
SHARED = ("counters", "configure", "close")  # methods of a session that the adapter calls


@dataclass(frozen=True)
class Step:
    """A session, with its inputs and outputs: the chain's name -> the session's name."""

    session: Any
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    flat: bool = False  # whether inputs have no dimension for the batch


class Chain:
    """Steps that run in order."""

    def __init__(self, steps: Sequence[Step], on_device: bool = False) -> None:
        self._steps = steps
        # on a GPU, outputs of a session stay there for the next one
        name = "run_on_device" if on_device else "run"
        self._calls = [getattr(step.session, name, step.session.run) for step in steps]

    def run(self, inputs: Tensors) -> Tensors:
        """Return the last step's outputs, under the chain's names."""
        tensors = self.run_all(inputs)
        return {name: tensors[name] for name in self._steps[-1].outputs}

    def run_all(self, inputs: Tensors) -> Tensors:
        """Return every tensor with a name in the chain: inputs, intermediate ones and outputs."""
        tensors = dict(inputs)
        for step, call in zip(self._steps, self._calls):  # noqa: B905
            feeds = {name: tensors[chain_name] for chain_name, name in step.inputs.items()}
            if step.flat:
                feeds = {name: values.reshape(-1) for name, values in feeds.items()}
            results = call(feeds)
            tensors.update({chain_name: results[name] for chain_name, name in step.outputs.items()})
        return tensors


def load(path: Path, threads: int, device: str) -> Chain:
    """Load the steps that the file `path` lists, each with its code, a module on `sys.path`."""
    steps = []
    for entry in json.loads(path.read_text()):
        runtime = importlib.import_module(entry["code"])
        session = runtime.load(path.parent / entry["file"], threads, device)
        steps.append(Step(session, entry["inputs"], entry["outputs"], entry["flat"]))
    chain = Chain(steps, on_device=device == "gpu")
    if device == "gpu":
        setattr(chain, "run_on_device", chain.run)  # noqa: B010
    for step in steps:
        for name in SHARED:
            if hasattr(step.session, name):
                setattr(chain, name, getattr(step.session, name))
    return chain
