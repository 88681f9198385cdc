"""Triton's own backends: what `config.pbtxt` says of each format where the server has them, for the
kinds docker and remote.

Sources: the README of triton-inference-server's onnxruntime_backend, pytorch_backend,
tensorflow_backend and openvino_backend (parameters and accelerators), tensorrt_backend's
instance_state.cc (which graphs it captures), server/docs/user_guide/model_configuration.md, and
model_config.proto. None of it can be loaded by a server without those backends.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from helpers.config import ConvertConfig, DeployConfig, StageConfig, releases
from helpers.errors import ServerError
from helpers.models import Tensor

WORKSPACE_BYTES = 1 << 30  # of ONNX Runtime's TensorRT; its own default, and NVIDIA's for ResNet50
# A folder of the server's machine: instances share the engines, and the repository is read-only.
# Each model has one: ONNX Runtime tells graphs of one structure apart by nothing else
# (github.com/microsoft/onnxruntime/issues/6455)
ENGINE_CACHE = "/tmp/tensorrt-{model}-{experiment}"
# github.com/triton-inference-server/onnxruntime_backend/issues/66; an older one refuses to load
FIRST_WITH_ENGINE_CACHE = "21.09"

Parameters = dict[str, str]


@dataclass(frozen=True)
class Backend:
    """How a format is served: the backend's name, the platform's where it has one, and what its
    parameters say of threads and precision.
    """

    name: str
    platform: str
    parameters: Callable[[int, str], Parameters]
    accelerators: tuple[tuple[str, str], ...] = ()  # names and the device that each is for


def _pytorch(threads: int, precision: str) -> Parameters:
    return {"INTRA_OP_THREAD_COUNT": str(threads), "INTER_OP_THREAD_COUNT": "1"}


def _onnxruntime(threads: int, precision: str) -> Parameters:
    return {"intra_op_thread_count": str(threads), "inter_op_thread_count": "1"}


def _tensorflow(threads: int, precision: str) -> Parameters:
    return {
        "TF_NUM_INTRA_THREADS": str(threads),
        "TF_NUM_INTER_THREADS": "1",
        "TF_USE_PER_SESSION_THREADS": "1",  # else the first instance's are everyone's
    }


def _openvino(threads: int, precision: str) -> Parameters:
    """Where a processor has bf16, OpenVINO uses it unasked, and no parameter forbids that."""
    found = {
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    return found | ({"HINT_BF16": "YES"} if precision == "bf16" else {})


def _none(threads: int, precision: str) -> Parameters:
    return {}


_TORCH = Backend("pytorch", "pytorch_libtorch", _pytorch)
_SAVED = Backend("tensorflow", "tensorflow_savedmodel", _tensorflow, (("amp", "gpu"),))
BACKENDS = {
    "onnx": Backend(
        "onnxruntime", "onnxruntime_onnx", _onnxruntime, (("trt", "gpu"), ("openvino", "cpu"))
    ),
    "openvino": Backend("openvino", "", _openvino),
    "tf-savedmodel": _SAVED,
    "tf-trt": Backend(_SAVED.name, _SAVED.platform, _tensorflow),
    "trt": Backend("tensorrt", "tensorrt_plan", _none),
    "ts-script": _TORCH,
    "ts-trace": _TORCH,
}


def is_native(config: StageConfig) -> bool:
    """Whether the experiment's server has backends of its own for the formats."""
    return str(config.server.kind) != "embedded"


def obstacle(config: ConvertConfig) -> str:
    """Say in one line why no native backend serves the experiment; empty if one does."""
    if config.format not in BACKENDS:
        return f"Triton has no backend of its own for {config.format}: use the embedded server"
    backend, release = BACKENDS[config.format], config.server.release
    if backend.name == "tensorflow" and not releases.has_tensorflow(release):
        return (
            f"{config.format} needs Triton's TensorFlow backend, and {release} has none: "
            f"set release to {releases.LAST_WITH_TENSORFLOW} or older"
        )
    chosen = config.accelerator
    if chosen != "none" and (chosen, config.device) not in backend.accelerators:
        known = ", ".join(f"{name} on a {device}" for name, device in backend.accelerators)
        return (
            f"{config.format} has no accelerator {chosen} on a {config.device}: "
            f"it has {known or 'none'}"
        )
    return ""


def complete(
    message: Any, config: DeployConfig, inputs: Iterable[Tensor], file: str, threads: int
) -> None:
    """Add to a `ModelConfig` what the format's own backend needs; raise `ServerError` where the
    release has none.
    """
    if reason := obstacle(config):
        raise ServerError(reason)
    backend = BACKENDS[config.format]
    message.backend, message.platform = backend.name, backend.platform
    message.default_model_filename = file
    for name, value in backend.parameters(threads, config.precision).items():
        message.parameters[name].string_value = value
    accelerators = message.optimization.execution_accelerators
    if config.accelerator == "trt":
        accelerators.gpu_execution_accelerator.add(name="tensorrt", parameters=_tensorrt(config))
    elif config.accelerator == "openvino":
        accelerators.cpu_execution_accelerator.add(name="openvino")
    elif config.accelerator == "amp":
        accelerators.gpu_execution_accelerator.add(name="auto_mixed_precision")
    if config.format == "trt" and config.capture_cuda_graph:
        _capture(message, config, inputs)
    if not message.optimization.ByteSize():
        message.ClearField("optimization")


def _tensorrt(config: DeployConfig) -> Parameters:
    found = {
        "precision_mode": (config.accelerator_precision or config.precision).upper(),
        "max_workspace_size_bytes": str(WORKSPACE_BYTES),
    }
    if releases.number(config.server.release) >= releases.number(FIRST_WITH_ENGINE_CACHE):
        path = ENGINE_CACHE.format(model=config.model, experiment=config.experiment)
        found |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": path}
    return found


def _capture(message: Any, config: DeployConfig, inputs: Iterable[Tensor]) -> None:
    """Have CUDA graphs captured of one sample, the preferred batches and the largest: what the
    backend takes by itself where there is a batcher, and so the same without one.
    """
    cuda, tensors = message.optimization.cuda, list(inputs)
    cuda.graphs = True
    for size in sorted({1, *config.preferred_batch_sizes, config.max_batch_size}):
        spec = cuda.graph_spec.add(batch_size=size)
        for tensor in tensors:
            spec.input[tensor.name].dim.extend(tensor.shape)
