"""TorchScript by tracing: one recorded path through the network, run by PyTorch.

bf16 casts floating-point inputs and outputs inside the graph, because neither numpy nor Triton's
clients speak bf16. The arguments of `forward` are named as the inputs: by these names, or else by
an index at their end, Triton's own backend tells them apart (pytorch_backend, libtorch.cc,
GetNamingConvention), and TFT's indices have gaps.
"""

import json
import warnings
from copy import deepcopy
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

FILE = "model.pt"
SOURCES = ("torch",)
PRECISIONS = {"cpu": ("fp32", "bf16"), "gpu": ("fp32", "fp16")}
RUNTIME = ("torch",)
SHOWN = ("PyTorch", "TorchScript Trace")
_TENSORS = "tensors.json"  # names of inputs and outputs: TorchScript keeps none


class TorchScriptSession:
    """A TorchScript module; the names of its tensors travel inside its file."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._device = "cuda" if device == "gpu" else "cpu"
        if device == "gpu":
            torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32
        extra = {_TENSORS: ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._module = torch.jit.load(str(path), map_location=self._device, _extra_files=extra)
        tensors = json.loads(extra[_TENSORS])
        self._inputs, self._outputs = tensors["inputs"], tensors["outputs"]

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: each.cpu().numpy() for name, each in self.run_on_device(inputs).items()}

    def run_on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As `run`, with outputs that stay on the device, and inputs that may be there already."""
        torch = self._torch
        with torch.inference_mode():
            given = [torch.as_tensor(inputs[name], device=self._device) for name in self._inputs]
            results = self._module(*given)
        return dict(
            zip(self._outputs, results if isinstance(results, tuple) else (results,), strict=True)
        )


def compile_trace(module: Any, arguments: tuple[Any, ...]) -> Any:
    import torch

    return torch.jit.trace(module, arguments)


def write(
    source: Any,
    path: Path,
    precision: str,
    inputs: dict[str, Any],
    outputs: tuple[str, ...],
    compiler: Any,
) -> None:
    """Compile `source` in `precision` with `compiler(module, arguments)`, freeze its weights into
    it and save it.
    """
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    arguments = tuple(torch.from_numpy(array) for array in inputs.values())
    module = deepcopy(source).to(dtype)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter(
            "ignore"
        )  # TorchScript is deprecated in PyTorch; it is measured because it is published
        cast = arguments
        if precision == "bf16":
            cast = tuple(a.to(dtype) if a.is_floating_point() else a for a in arguments)
        wrapped = _wrapped(compiler(module, cast), list(inputs), precision == "bf16")
        frozen = torch.jit.freeze(torch.jit.trace(wrapped, arguments).eval())
        names = json.dumps({"inputs": list(inputs), "outputs": list(outputs)})
        torch.jit.save(frozen, str(path), _extra_files={_TENSORS: names})


def _wrapped(module: Any, names: list[str], casts: bool) -> Any:
    """Wrap a compiled module in one whose `forward` has arguments of these names, and which casts
    floating-point tensors from and to fp32 around a bf16 one.
    """
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *arguments: Any) -> Any:
            if not casts:
                return self.module(*arguments)
            results = self.module(
                *(a.to(torch.bfloat16) if a.is_floating_point() else a for a in arguments)
            )
            if isinstance(results, tuple):
                return tuple(result.float() for result in results)
            return results.float()

    named = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    Wrapped.forward.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return Wrapped()


def make(
    source: Any, path: Path, *, precision: str, inputs: dict[str, Any], outputs: tuple[str, ...]
) -> None:
    """Trace a PyTorch module on `inputs`: control flow that depends on them is fixed as it was
    taken.
    """
    write(source, path, precision, inputs, outputs, compile_trace)


def load(path: Path, threads: int, device: str) -> TorchScriptSession:
    return TorchScriptSession(path, threads, device)
