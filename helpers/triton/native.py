"""Triton's own backends: the fields of `config.pbtxt` for each format, for the server kinds docker
and remote, which have these backends.

Sources: the README of triton-inference-server's onnxruntime_backend, pytorch_backend,
tensorflow_backend and openvino_backend (parameters and accelerators), tensorrt_backend's
instance_state.cc (which graphs it captures), server/docs/user_guide/model_configuration.md, and
model_config.proto. A server without those backends cannot load any of it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from helpers.config import ConvertConfig, DeployConfig, StageConfig, releases
from helpers.errors import ServerError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

WORKSPACE_BYTES = 1 << 30  # of ONNX Runtime's TensorRT; its own default, and NVIDIA's for ResNet50
# A folder on the server's machine: instances share the engines, and the repository is read-only.
# Each model has its own: ONNX Runtime cannot distinguish graphs of the same structure
# (github.com/microsoft/onnxruntime/issues/6455)
ENGINE_CACHE = "/tmp/tensorrt-{model}-{experiment}"
# github.com/triton-inference-server/onnxruntime_backend: pull request 47 reads the parameters of
# accelerators, and before issue 66 a cache is a reason not to load
FIRST_WITH_PARAMETERS, FIRST_WITH_ENGINE_CACHE = "21.06", "21.09"


class Backend(NamedTuple):
    """How a format is served: the backend's name, its platform if any, parameters and accelerators.

    The value "threads" of a parameter stands for the number of threads.
    """

    name: str
    platform: str
    parameters: Mapping[str, str]
    accelerators: tuple[str, ...] = ()


ACCELERATORS = {  # our name -> the device that it is for, and Triton's name
    "trt": ("gpu", "tensorrt"),
    "openvino": ("cpu", "openvino"),
    "amp": ("gpu", "auto_mixed_precision"),
}
_PYTORCH = {"INTRA_OP_THREAD_COUNT": "threads", "INTER_OP_THREAD_COUNT": "1"}
_ONNXRUNTIME = {"intra_op_thread_count": "threads", "inter_op_thread_count": "1"}
_TENSORFLOW = {
    "TF_NUM_INTRA_THREADS": "threads",
    "TF_NUM_INTER_THREADS": "1",
    "TF_USE_PER_SESSION_THREADS": "1",  # otherwise all instances share the first one's
}
_LIBTORCH = Backend("pytorch", "pytorch_libtorch", _PYTORCH)
BACKENDS = {
    "onnx": Backend("onnxruntime", "onnxruntime_onnx", _ONNXRUNTIME, ("trt", "openvino")),
    "tf-savedmodel": Backend("tensorflow", "tensorflow_savedmodel", _TENSORFLOW, ("amp",)),
    "tf-trt": Backend("tensorflow", "tensorflow_savedmodel", _TENSORFLOW),
    "trt": Backend("tensorrt", "tensorrt_plan", {}),
    "ts-script": _LIBTORCH,
    "ts-trace": _LIBTORCH,
}


def backend_of(message: "ModelConfig") -> str:
    """Return the backend that runs a model; an older configuration has a platform instead."""
    return str(message.backend or message.platform.partition("_")[0])


def why_unavailable(config: ConvertConfig) -> str:
    """Return why, in one line, no native backend serves the experiment; empty if one does."""
    if config.format not in BACKENDS:
        # the OpenVINO backend fixes the batch at max_batch_size; another ends the server
        return (
            f"No native backend serves {config.format} at every batch size. Set server.backend "
            "to adapter, or use the embedded server."
        )
    backend, release = BACKENDS[config.format], config.server.release
    if backend.name == "tensorflow" and not releases.has_tensorflow(release):
        return (
            f"{config.format} needs Triton's TensorFlow backend, which {release} does not have. "
            f"Set release to {releases.LAST_WITH_TENSORFLOW} or older."
        )
    chosen, supported = config.accelerator, backend.accelerators
    if chosen != "none" and not (chosen in supported and ACCELERATORS[chosen][0] == config.device):
        has = ", ".join(f"{name} on a {ACCELERATORS[name][0]}" for name in supported) or "none"
        where = f"on a {config.device}. Available: {has}."
        return f"{config.format} has no accelerator {chosen} {where}"
    return ""


def complete(
    message: "ModelConfig",
    config: DeployConfig,
    file: str,
    threads: int,
    flat: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Complete a `ModelConfig` that has its inputs, `flat` ones as a `Part` has them; raise
    `ServerError` if it has no backend.
    """
    if reason := why_unavailable(config):
        raise ServerError(reason)
    backend = BACKENDS[config.format]
    message.backend, message.platform = backend.name, backend.platform
    message.default_model_filename = file
    for name, value in backend.parameters.items():
        message.parameters[name].string_value = str(threads) if value == "threads" else value
    if config.accelerator != "none":
        device, name = ACCELERATORS[config.accelerator]
        used = message.optimization.execution_accelerators
        getattr(used, f"{device}_execution_accelerator").add(
            name=name, parameters=accelerator_parameters(config)
        )
    if config.format == "trt" and config.capture_cuda_graph:
        # Of one sample, the preferred batch sizes and the largest. With a batcher the backend does
        # so by itself; so it is the same without one.
        message.optimization.cuda.graphs = True
        for size in sorted({1, *config.preferred_batch_sizes, config.max_batch_size}):
            spec = message.optimization.cuda.graph_spec.add(batch_size=0 if flat else size)
            for tensor in message.input:
                dims = [size * flat[tensor.name]] if flat else tensor.dims
                spec.input[tensor.name].dim.extend(dims)


def has_accelerator_parameters(config: StageConfig) -> bool:
    """Return whether the release's ONNX Runtime backend reads its accelerators' parameters."""
    return releases.number(config.server.release) >= releases.number(FIRST_WITH_PARAMETERS)


def tensorrt_precision(config: ConvertConfig) -> str:
    """Return the precision in which ONNX Runtime's TensorRT computes."""
    return config.accelerator_precision or config.precision


def engine_cache(config: ConvertConfig) -> str:
    """Return the folder for engines of ONNX Runtime's TensorRT; empty if there is none."""
    has_cache = releases.number(config.server.release) >= releases.number(FIRST_WITH_ENGINE_CACHE)
    if config.accelerator != "trt" or not has_cache:
        return ""
    return ENGINE_CACHE.format(model=config.model, experiment=config.experiment)


def accelerator_parameters(config: ConvertConfig) -> dict[str, str]:
    """Return the parameters of an experiment's accelerator: TensorRT's precision, memory, cache."""
    if config.accelerator != "trt" or not has_accelerator_parameters(config):
        return {}
    parameters = {
        "precision_mode": tensorrt_precision(config).upper(),
        "max_workspace_size_bytes": str(WORKSPACE_BYTES),
    }
    if path := engine_cache(config):
        parameters |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": path}
    return parameters
