"""Running a network in the framework it was built with: the reference of the accuracy ladder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import models
from helpers.config import ExportConfig
from helpers.formats import Arrays, Session
from helpers.inference.ensemble import Chain, parts
from helpers.models import Model


class TorchSession:
    """A PyTorch module in evaluation mode on the CPU, in fp32."""

    def __init__(self, model: Model, config: ExportConfig, checkpoint: Path) -> None:
        self._network = model.build(config, checkpoint).float()
        self._inputs = [tensor.name for tensor in model.inputs(config)]
        self._outputs = [tensor.name for tensor in model.outputs(config)]

    def run(self, inputs: Arrays) -> Arrays:
        import torch

        with torch.inference_mode():
            arrays = [torch.from_numpy(inputs[name]) for name in self._inputs]
            results = self._network(*(a.float() if a.is_floating_point() else a for a in arrays))
        return _named(self._outputs, results)


class KerasSession:
    """A Keras model on the CPU, in fp32."""

    def __init__(self, model: Model, config: ExportConfig, checkpoint: Path) -> None:
        self._network = model.build(config, checkpoint)
        self._outputs = [tensor.name for tensor in parts(config)[-1].outputs.values()]

    def run(self, inputs: Arrays) -> Arrays:
        return _named(self._outputs, self._network(inputs, training=False))


def _named(names: list[str], results: Any) -> Arrays:
    """Give the results of a network, one tensor or a sequence of them, as arrays by name."""
    tensors = results if isinstance(results, (list, tuple)) else (results,)
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


_SESSIONS: dict[str, Callable[[Model, ExportConfig, Path], Session]] = {
    "torch": TorchSession,
    "tensorflow": KerasSession,
}


def framework_session(model: Model, config: ExportConfig, checkpoint: Path) -> Session:
    """Build the model's network from `checkpoint` as a session, with the lookup before it if there
    is one; the lookup reads its tables from the checkpoint's own files.
    """
    network = _SESSIONS[model.FRAMEWORK](model, config, checkpoint)
    ensemble, (*lookups, graph) = models.ensemble(config.model), parts(config)
    if ensemble is None:
        return network
    before = ((part, ensemble.mapped(config, checkpoint)) for part in lookups)
    return Chain([*before, (graph, network)])
