"""TensorRT through its Python API: building an engine, and running one on the GPU.

    python _tensorrt.py REQUEST.json      builds what the request asks for, in the request's folder

This file is a served model's runtime, and is run inside NVIDIA's images of older releases: it
imports nothing of this package and builds with Python 3.8 and TensorRT 7.2 to 10. An engine runs
with TensorRT 10 and PyTorch, which keeps its tensors on the GPU.

On a machine without a GPU no line behind `require_driver` has been run.
Source: TensorRT's documentation, "Python API" and "Working with Dynamic Shapes".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FACTS = "engine.json"  # beside the engine: what built it and for what
WORKSPACE_BYTES = 8 * 2**30  # as NVIDIA's BERT and Wide & Deep; more than a layer asks for
MOST_GRAPHS = 16  # each has an execution context, with memory of its own
_DRIVER = Path("/proc/driver/nvidia/version")


def require_driver() -> None:
    """Raise RuntimeError without a driver: TensorRT would end the process instead."""
    if not _DRIVER.exists():
        raise RuntimeError("TensorRT needs an NVIDIA driver, and none is loaded here")


def profile(shapes: dict[str, list[int]], largest: int) -> dict[str, dict[str, list[int]]]:
    """Give the smallest, best and largest shape of each input; `shapes` have no batch dimension.

    One sample is the smallest, and the largest batch is what the engine is tuned for, as in
    NVIDIA's conversions.
    """
    return {
        name: {"min": [1, *shape], "opt": [largest, *shape], "max": [largest, *shape]}
        for name, shape in shapes.items()
    }


def build(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Build the engine of `request` in `folder`, write its facts beside it, and give them.

    A request names `onnx`, `engine` and `timing_cache`, files of the folder; `precision`, `profile`
    and `workspace_bytes`; and `cuda_graphs`, which a session reads. Raises RuntimeError with
    TensorRT's last complaint.
    """
    require_driver()
    import tensorrt as trt

    complaints = []

    class Notes(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                complaints.append(" ".join(message.split()))

    def wanted(thing: Any, verb: str) -> Any:
        if not thing:
            why = complaints[-1] if complaints else "it does not say why"
            raise RuntimeError(f"TensorRT {trt.__version__} cannot {verb}: {why}")
        return thing

    notes = Notes()
    builder = wanted(trt.Builder(notes), "start")
    flags = trt.NetworkDefinitionCreationFlag
    explicit = getattr(flags, "EXPLICIT_BATCH", None)  # from 10 on there is no other
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, notes)
    wanted(parser.parse_from_file(str(folder / request["onnx"])), "read the ONNX file")
    config = builder.create_builder_config()
    _limit_workspace(trt, config, request["workspace_bytes"])
    _set_precision(trt, config, request["precision"])
    shapes = builder.create_optimization_profile()
    for name, each in request["profile"].items():
        shapes.set_shape(name, each["min"], each["opt"], each["max"])
    config.add_optimization_profile(shapes)
    cache = _timing_cache(config, folder / request["timing_cache"])
    if hasattr(builder, "build_serialized_network"):
        plan = wanted(builder.build_serialized_network(network, config), "build the engine")
    else:  # before 8.0
        plan = wanted(builder.build_engine(network, config), "build the engine").serialize()
    (folder / request["engine"]).write_bytes(bytes(plan))
    if cache:
        (folder / request["timing_cache"]).write_bytes(bytes(cache.serialize()))
    facts = {name: request[name] for name in ("precision", "profile", "cuda_graphs")}
    facts["tensorrt"] = trt.__version__
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _limit_workspace(trt: Any, config: Any, size: int) -> None:
    """Allow a layer `size` bytes of scratch memory."""
    if hasattr(config, "set_memory_pool_limit"):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, size)
    else:  # before 8.4
        config.max_workspace_size = size


def _set_precision(trt: Any, config: Any, precision: str) -> None:
    """Allow half precision, or forbid what fp32 is not: TF32, Ampere's own default."""
    if precision == "fp16":
        if not hasattr(trt.BuilderFlag, "FP16"):
            raise RuntimeError(f"TensorRT {trt.__version__} no longer makes fp16 of fp32: use 10")
        config.set_flag(trt.BuilderFlag.FP16)
    elif hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)


def _timing_cache(config: Any, path: Path) -> Any:
    """Give `config` the timings of earlier builds, where the same TensorRT and GPU made them."""
    if not hasattr(config, "create_timing_cache"):  # before 8.0
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    if not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


class TensorRtSession:
    """An engine with its execution contexts: one for any shape, and one for each CUDA graph."""

    def __init__(self, path: Path) -> None:
        facts = json.loads(path.with_name(FACTS).read_text())
        require_driver()
        import tensorrt as trt
        import torch

        if trt.__version__ != facts["tensorrt"]:
            raise RuntimeError(
                f"TensorRT {facts['tensorrt']} built the engine and this is {trt.__version__}: "
                "convert again"
            )
        self._torch = torch
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise RuntimeError("TensorRT cannot load the engine: another kind of GPU built it")
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self._inputs = [name for name in names if modes[name] == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if name not in self._inputs]
        self._types = {
            name: getattr(torch, trt.nptype(self._engine.get_tensor_dtype(name)).__name__)
            for name in self._outputs
        }
        self._stream = torch.cuda.Stream()
        self._context = self._engine.create_execution_context()
        self._with_graphs = facts["cuda_graphs"]
        self._graphs: dict[int, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {}

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: each.cpu().numpy() for name, each in self.run_on_device(inputs).items()}

    def run_on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As `run`, with outputs that stay on the GPU until the next call, and inputs that may be
        there already.
        """
        torch = self._torch
        size = len(inputs[self._inputs[0]])
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            given = {name: torch.as_tensor(inputs[name]) for name in self._inputs}
            if size in self._graphs:
                graph, _, fixed, results = self._graphs[size]
                for name, tensor in given.items():
                    fixed[name].copy_(tensor, non_blocking=True)
                graph.replay()
            else:
                on_device = {name: tensor.cuda() for name, tensor in given.items()}
                results = self._execute(self._context, on_device)
                if self._with_graphs and len(self._graphs) < MOST_GRAPHS:
                    self._capture(size, on_device)
            self._stream.synchronize()
        return results

    def _execute(self, context: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Enqueue one batch; give its outputs, which are on the GPU, as the inputs are."""
        for name, tensor in tensors.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"the engine takes no {name} of shape {tuple(tensor.shape)}")
            context.set_tensor_address(name, tensor.data_ptr())
        results = {}
        for name in self._outputs:
            shape = tuple(context.get_tensor_shape(name))
            results[name] = self._torch.empty(shape, dtype=self._types[name], device="cuda")
            context.set_tensor_address(name, results[name].data_ptr())
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise RuntimeError("TensorRT could not run the engine")
        return results

    def _capture(self, size: int, tensors: dict[str, Any]) -> None:
        """Record a batch of this size as one launch; a context's first run may not be recorded."""
        context = self._engine.create_execution_context()
        results = self._execute(context, tensors)
        self._stream.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            context.execute_async_v3(self._stream.cuda_stream)
        self._graphs[size] = (graph, context, tensors, results)


def load(path: Path, threads: int, device: str) -> TensorRtSession:
    """Load an engine; its work is on the GPU, so `threads` has no effect."""
    if device != "gpu":
        raise RuntimeError("a TensorRT engine runs on a GPU only")
    return TensorRtSession(path)


if __name__ == "__main__":
    REQUEST = Path(sys.argv[1])
    try:
        print(json.dumps(build(json.loads(REQUEST.read_text()), REQUEST.parent)))
    except RuntimeError as error:
        sys.exit(str(error))
