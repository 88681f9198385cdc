"""TensorRT through its Python API: engines, and TF-TRT, SavedModels with engines in TensorFlow.

    python _tensorrt.py REQUEST.json      builds the request's target, in the request's folder

This file is the runtime of both formats, and runs inside NVIDIA's images of older releases. So it
imports nothing of this package. It builds with Python 3.8, TensorRT 7.2 to 10 and TensorFlow up to
2.17, the last with TensorRT (github.com/tensorflow/tensorflow/releases/tag/v2.17.0). An engine runs
with TensorRT 10 and PyTorch, which keeps its tensors on the GPU.

Nothing after `require_driver` has run on a machine without a GPU.
Source: TensorRT's documentation, "Python API" and "Working with Dynamic Shapes".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import tensorflow
    import torch

    from helpers.formats import Array, Arrays

FACTS = "engine.json"  # in the folder of an engine: its TensorRT version and its settings
TIMINGS = ".tensorrt-timings-"  # and its version: TensorRT's timing cache
WORKSPACE_BYTES = 8 * 2**30  # scratch: as NVIDIA's BERT and Wide & Deep; no layer needs more
MAX_GRAPHS = 16  # each has an execution context, with memory of its own
SAVED_MODEL = ".savedmodel"  # the suffix of what TF-TRT makes
_SIGNATURE = "serving_default"
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


class Request(TypedDict):
    """What to build."""

    source: str  # in the folder of the request: an ONNX file for an engine, a SavedModel for TF-TRT
    target: str  # in that folder too
    precision: str
    profile: dict[str, dict[str, list[int]]]  # see `profile`
    cuda_graphs: bool  # whether a session of the engine captures CUDA graphs


def require_driver() -> None:
    """Raise RuntimeError if there is no driver: without it TensorRT would end the process."""
    if not any(Path(file).exists() for file in DRIVER_FILES):
        raise RuntimeError("TensorRT needs an NVIDIA driver, but none is loaded")


def profile(
    inputs: Arrays, max_batch_size: int, samples: int = 0
) -> dict[str, dict[str, list[int]]]:
    """Return the minimum, optimal and maximum shape of each input.

    A flat input holds `samples` samples of several elements. The engine is tuned for the largest
    batch, as in NVIDIA's conversions.
    """
    shapes = {}
    for name, array in inputs.items():
        elements = len(array) // (samples or len(array))
        largest = [elements * max_batch_size, *array.shape[1:]]
        shapes[name] = {"min": [elements, *array.shape[1:]], "opt": largest, "max": largest}
    return shapes


def build(request: Request, folder: Path) -> None:
    """Build the target of `request` in `folder`; raise RuntimeError with the reason if it fails."""
    require_driver()
    if request["target"].endswith(SAVED_MODEL):
        _build_saved_model(request, folder)
    else:
        _build_engine(request, folder)


def _build_engine(request: Request, folder: Path) -> None:
    """Build an engine, write its facts, and update the timing cache."""
    import tensorrt as trt

    errors = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(" ".join(message.split()))

    def checked(result: Any, verb: str) -> Any:
        if not result:
            reason = errors[-1] if errors else "it gives no reason"
            raise RuntimeError(f"TensorRT {trt.__version__} cannot {verb}: {reason}")
        return result

    logger = Logger()
    builder = checked(trt.Builder(logger), "start")
    flags = trt.NetworkDefinitionCreationFlag
    explicit = getattr(flags, "EXPLICIT_BATCH", None)  # the only kind since 10
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, logger)
    checked(parser.parse_from_file(str(folder / request["source"])), "read the ONNX file")
    config = builder.create_builder_config()
    if hasattr(config, "set_memory_pool_limit"):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    else:  # before 8.4
        config.max_workspace_size = WORKSPACE_BYTES
    _set_precision(trt, config, request["precision"])
    shapes = builder.create_optimization_profile()
    for name, limits in request["profile"].items():
        shapes.set_shape(name, limits["min"], limits["opt"], limits["max"])
    config.add_optimization_profile(shapes)
    timings = folder / f"{TIMINGS}{trt.__version__}"
    cache = _timing_cache(config, timings)
    if hasattr(builder, "build_serialized_network"):
        plan = checked(builder.build_serialized_network(network, config), "build the engine")
    else:  # before 8.0
        plan = checked(builder.build_engine(network, config), "build the engine").serialize()
    (folder / request["target"]).write_bytes(bytes(plan))
    if cache:
        timings.write_bytes(bytes(cache.serialize()))
    settings = {name: request[name] for name in ("precision", "profile", "cuda_graphs")}
    metadata = {**settings, "tensorrt": trt.__version__}
    (folder / FACTS).write_text(json.dumps(metadata, indent=1) + "\n")


def _set_precision(trt: Any, config: Any, precision: str) -> None:
    """Allow fp16 and int8, or forbid TF32, the default for fp32 on Ampere and newer."""
    if precision in ("fp16", "int8"):
        if not hasattr(trt.BuilderFlag, "FP16"):
            raise RuntimeError(
                f"TensorRT {trt.__version__} cannot convert fp32 to {precision}. Use TensorRT 10."
            )
        config.set_flag(trt.BuilderFlag.FP16)
        if precision == "int8":  # where the graph has scales for it
            config.set_flag(trt.BuilderFlag.INT8)
    elif hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)


def _timing_cache(config: Any, path: Path) -> Any:
    """Load earlier timings into `config`, if the same TensorRT and GPU measured them."""
    if not hasattr(config, "create_timing_cache"):  # before 8.0
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    if not (cache and config.set_timing_cache(cache, False)):  # None: it is damaged
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


def _build_saved_model(request: Request, folder: Path) -> None:
    """Convert a SavedModel by TF-TRT. Its engines are built now, for the whole profile."""
    tf = _tensorflow()
    from tensorflow.python.compiler.tensorrt import trt_convert

    converter = trt_convert.TrtGraphConverterV2(
        input_saved_model_dir=str(folder / request["source"]),
        input_saved_model_signature_key=_SIGNATURE,
        precision_mode=request["precision"].upper(),
        max_workspace_size_bytes=WORKSPACE_BYTES,
        use_dynamic_shape=True,
        dynamic_shape_profile_strategy="Range+Optimal",
    )
    function = converter.convert()

    def batches() -> Iterator[dict[str, tensorflow.Tensor]]:
        specs = function.structured_input_signature[1]
        for end in ("min", "max"):  # the two ends of the range
            shapes = {name: limits[end] for name, limits in request["profile"].items()}
            yield {name: tf.zeros(shapes[name], specs[name].dtype) for name in shapes}

    converter.build(input_fn=batches)
    converter.save(str(folder / request["target"]))


def _tensorflow() -> Any:
    """Import TensorFlow; raise RuntimeError if it has no TensorRT or sees no GPU."""
    import tensorflow as tf

    if tuple(int(part) for part in tf.__version__.split(".")[:2]) > (2, 17):
        raise RuntimeError(f"TensorFlow {tf.__version__} has no TensorRT: 2.17 is the last")
    if not tf.config.list_physical_devices("GPU"):
        raise RuntimeError("TensorFlow finds no GPU and would use the CPU instead")
    return tf


class TensorRtSession:
    """An engine with its execution contexts: one for any shape, and one for each CUDA graph."""

    def __init__(self, path: Path) -> None:
        metadata = json.loads(path.with_name(FACTS).read_text())
        import tensorrt as trt
        import torch

        if trt.__version__ != metadata["tensorrt"]:
            built, here = metadata["tensorrt"], trt.__version__
            raise RuntimeError(
                f"TensorRT {built} built the engine, but {here} runs. Convert again."
            )
        self._torch = torch
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise RuntimeError("TensorRT cannot load an engine that another kind of GPU built")
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
        self._with_graphs = metadata["cuda_graphs"]
        self._graphs: dict[int, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {}

    def run(self, inputs: Arrays) -> Arrays:
        return {name: tensor.cpu().numpy() for name, tensor in self.run_on_device(inputs).items()}

    def run_on_device(self, inputs: Mapping[str, Array | torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run on inputs that may be on the GPU; outputs stay there until the next call."""
        torch = self._torch
        size = len(inputs[self._inputs[0]])
        self._stream.wait_stream(torch.cuda.current_stream())  # where the inputs may be made
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            tensors = {name: torch.as_tensor(inputs[name]) for name in self._inputs}
            if size in self._graphs:
                graph, _, fixed, results = self._graphs[size]
                for name, tensor in tensors.items():
                    fixed[name].copy_(tensor, non_blocking=True)
                graph.replay()
            else:
                on_device = {name: tensor.cuda() for name, tensor in tensors.items()}
                results = self._execute(self._context, on_device)
                if self._with_graphs and len(self._graphs) < MAX_GRAPHS:
                    self._capture(size, on_device)
            self._stream.synchronize()
        return results

    def _execute(self, context: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Enqueue one batch that is on the GPU; its outputs are there too."""
        for name, tensor in tensors.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"the engine rejects {name} of shape {tuple(tensor.shape)}")
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
        """Record a batch of this size as one launch; a context's first run cannot be recorded."""
        context = self._engine.create_execution_context()
        results = self._execute(context, tensors)
        self._stream.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            context.execute_async_v3(self._stream.cuda_stream)
        self._graphs[size] = (graph, context, tensors, results)


def load(path: Path, threads: int, device: str) -> TensorRtSession:
    """Load an engine; it works on the GPU, so `threads` has no effect."""
    if device != "gpu":
        raise RuntimeError("TensorRT runs only on a GPU")
    if path.suffix == SAVED_MODEL:
        raise RuntimeError(
            "tf-trt runs only in Triton's TensorFlow backend. Use server.kind docker."
        )
    require_driver()
    return TensorRtSession(path)


if __name__ == "__main__":
    REQUEST = Path(sys.argv[1])
    try:
        build(json.loads(REQUEST.read_text()), REQUEST.parent)
    except RuntimeError as error:
        sys.exit(str(error))
