"""TorchScript by tracing: the operations of one run through the network, run by PyTorch.

Floating-point inputs and outputs of a bf16 network are cast inside the graph, because neither numpy
nor Triton's clients have bf16. The arguments of `forward` have the names of the inputs. Triton's
PyTorch backend matches inputs by these names, or by an index at the end of a name. The indices of
TFT's inputs have gaps. Source: pytorch_backend, libtorch.cc, GetNamingConvention.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from helpers.formats import Array, Arrays, Build, GraphFacts, Source

    Compile = Callable[[torch.nn.Module, tuple[torch.Tensor, ...]], torch.jit.ScriptModule]

FILE = "model.pt"
SOURCES = ("torch",)
PRECISIONS = {"cpu": ("fp32", "bf16"), "gpu": ("fp32", "fp16")}
RUNTIME = ("torch",)
DISPLAY_NAMES = ("PyTorch", "TorchScript Trace")

_TENSORS = "tensors.json"  # names of inputs and outputs, which TorchScript itself does not keep


class TorchScriptSession:
    """A TorchScript module; the names of its tensors are stored in its file."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self._device = "cuda" if device == "gpu" else "cpu"
        if device == "gpu":
            torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32
        extra = {_TENSORS: ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._module = torch.jit.load(str(path), map_location=self._device, _extra_files=extra)
        tensors = json.loads(extra[_TENSORS])
        self._inputs, self._outputs = tensors["inputs"], tensors["outputs"]

    def run(self, inputs: Arrays) -> Arrays:
        return {name: tensor.cpu().numpy() for name, tensor in self.run_on_device(inputs).items()}

    def run_on_device(self, inputs: Mapping[str, Array | torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run as `run` does, but inputs may be tensors on the device, and outputs stay there."""
        import torch

        with torch.inference_mode():
            tensors = [torch.as_tensor(inputs[name], device=self._device) for name in self._inputs]
            results = self._module(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        return dict(zip(self._outputs, results, strict=True))


load = TorchScriptSession


def describe(path: Path) -> GraphFacts:
    """Count the operators of a module, without the `prim` ones that make lists and constants."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = torch.jit.load(str(path), map_location="cpu").inlined_graph
    return {"operators": dict(Counter(_kinds(graph)))}


def _kinds(block: torch.Graph | torch.Block) -> Iterator[str]:
    for node in block.nodes():
        if not node.kind().startswith("prim::") or node.kind() in ("prim::If", "prim::Loop"):
            yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)


def make(source: Source, path: Path, build: Build) -> None:
    """Save the operations of one run; control flow that depends on the inputs is fixed."""
    import torch

    build.record("torch.jit.trace", "network", "samples")
    save(source, path, build, torch.jit.trace)


def save(source: Source, path: Path, build: Build, compiled: Compile) -> None:
    """Compile a PyTorch network, freeze its weights into the graph and save it."""
    import torch

    assert not isinstance(source, Path)
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    module, is_bf16 = deepcopy(source).to(dtypes[build.precision]), build.precision == "bf16"
    arguments = tuple(torch.from_numpy(array) for array in build.inputs.values())
    names = {"inputs": list(build.inputs), "outputs": list(build.outputs)}
    # a traced convolution keeps this setting: fp32 is fp32
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with warnings.catch_warnings(), torch.no_grad(), exact:
        # PyTorch deprecates TorchScript; it is measured because figures of it are published
        warnings.simplefilter("ignore")
        graph = compiled(module, _to_bf16(arguments) if is_bf16 else arguments)
        wrapped = _wrapped(graph, names["inputs"], is_bf16)
        frozen = torch.jit.freeze(torch.jit.trace(wrapped, arguments).eval())
        torch.jit.save(frozen, str(path), _extra_files={_TENSORS: json.dumps(names)})
    build.record("torch.jit.freeze", "module")
    build.record("torch.jit.save", "module", f"'{FILE}'")


def _to_bf16(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.bfloat16() if t.is_floating_point() else t for t in tensors)


def _wrapped(module: torch.nn.Module, names: list[str], is_bf16: bool) -> torch.nn.Module:
    """Return the module with named arguments of `forward`; with bf16, cast from and to fp32."""
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            if not is_bf16:
                return self.module(*arguments)
            results = self.module(*_to_bf16(arguments))
            if isinstance(results, tuple):
                return tuple(result.float() for result in results)
            return results.float()

    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    Wrapped.forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return Wrapped()
