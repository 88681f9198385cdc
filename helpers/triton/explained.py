"""What each field of a model's `config.pbtxt` means, for readers who have never seen one.

Source: server/docs/user_guide/model_configuration.md, batcher.md and ensemble_models.md of Triton,
and model_config.proto.
"""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.display import Table, table
from helpers.store import Artifact

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

Line = tuple[str, str, str]  # field, value, why
CONFIGURATION = "config.pbtxt"
KINDS = {1: "on a GPU", 2: "on the CPU"}  # ModelInstanceGroup.Kind
BACKENDS = {
    "python": "The Python backend runs 1/model.py in its own process. It calls the format's "
    "runtime.",
    "onnxruntime": "Triton's own backend for ONNX Runtime loads the graph.",
    "onnxruntime_onnx": "Triton's own backend for ONNX Runtime loads the graph.",
    "pytorch": "Triton's own backend for PyTorch loads the TorchScript module.",
    "pytorch_libtorch": "Triton's own backend for PyTorch loads the TorchScript module.",
    "tensorflow": "Triton's own backend for TensorFlow loads the SavedModel.",
    "tensorflow_savedmodel": "Triton's own backend for TensorFlow loads the SavedModel.",
    "tensorrt": "Triton's own backend for TensorRT loads the engine.",
    "tensorrt_plan": "Triton's own backend for TensorRT loads the engine.",
    "openvino": "Triton's own backend for OpenVINO loads the graph.",
    "ensemble": "An ensemble computes nothing. It passes a request's tensors between models.",
}
THREADS = "Threads of one instance. More threads than cores gain nothing."
BETWEEN = "Operators of one graph that run at once. With 1, each operator has all the threads."
PARAMETERS = {
    "file": "The artifact that model.py loads, in the same folder.",
    "threads": THREADS,
    "device": "The device that the runtime uses.",
    "exact": "A lookup waits for every vector and returns no default vectors.",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "With no, tensors on the GPU stay there.",
    "intra_op_thread_count": THREADS,
    "INTRA_OP_THREAD_COUNT": THREADS,
    "TF_NUM_INTRA_THREADS": THREADS,
    "inter_op_thread_count": BETWEEN,
    "INTER_OP_THREAD_COUNT": BETWEEN,
    "TF_NUM_INTER_THREADS": BETWEEN,
    "TF_USE_PER_SESSION_THREADS": "Each instance has its own threads.",
}
ACCELERATORS = {
    "tensorrt": "ONNX Runtime runs the supported parts of the graph with TensorRT.",
    "openvino": "ONNX Runtime runs the supported parts of the graph with OpenVINO.",
    "auto_mixed_precision": "TensorFlow computes in fp16 where that keeps the accuracy.",
}
UNKNOWN = "See Triton's documentation of the model configuration."


def explain(message: "ModelConfig") -> Iterator[Line]:
    """Explain each field that a configuration sets, and the batcher where it has none."""
    yield "name", message.name, f"Clients send requests to /v2/models/{message.name}/infer."
    served_by = message.platform or message.backend
    field = "platform" if message.platform else "backend"
    yield field, served_by, BACKENDS.get(served_by, UNKNOWN)
    if message.platform and message.backend:
        yield "backend", message.backend, BACKENDS.get(message.backend, UNKNOWN)
    if message.default_model_filename:
        name = message.default_model_filename
        yield "default_model_filename", name, "The model's file, in the version folder 1."
    yield _batch(message.max_batch_size)
    for kind, tensors in (("input", message.input), ("output", message.output)):
        for tensor in tensors:
            dtype = message.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
            shape = f"{dtype[tensor.data_type].name} {[*tensor.dims]}"
            free = ", -1 for any size" if -1 in tensor.dims else ""
            without = " without the batch dimension" if message.max_batch_size else ""
            yield f"{kind} {tensor.name}", shape, f"Type and shape of a sample{without}{free}."
    for group in message.instance_group:
        copies = "copy of the model runs" if group.count == 1 else "copies of the model run at once"
        value = f"{group.count} {KINDS.get(group.kind, '')}".strip()
        why = f"{group.count} {copies}. Each copy takes the model's memory."
        yield "instance_group", value, why
    if message.platform != "ensemble":
        yield from _batcher(message)
    for step in message.ensemble_scheduling.step:
        wires = [f"{name} as {own}" for own, name in sorted(step.input_map.items())]
        wires += [f"{own} becomes {name}" for own, name in sorted(step.output_map.items())]
        why = "A step of the ensemble. It runs as soon as its input tensors exist."
        yield f"step {step.model_name}", ", ".join(wires), why
    yield from _optimization(message)
    for name, parameter in sorted(message.parameters.items()):
        yield f"parameters {name}", parameter.string_value, PARAMETERS.get(name, UNKNOWN)
    if sizes := [str(each.batch_size) for each in message.model_warmup]:
        why = (
            "Triton runs these batch sizes on zeros before the model is ready. Clients then do not "
            "wait for memory or for the choice of kernels."
        )
        yield "model_warmup", ", ".join(sizes), why


def _batch(size: int) -> Line:
    if size:
        why = "The largest batch of one execution. Each tensor has the batch as first dimension."
        return "max_batch_size", f"{size:,}", why
    return "max_batch_size", "0", "No batch dimension. Each request is executed as it is."


def _batcher(message: "ModelConfig") -> Iterator[Line]:
    if not message.HasField("dynamic_batching"):
        yield "dynamic_batching", "none", "No dynamic batcher. Each request is executed alone."
        return
    batcher = message.dynamic_batching
    sizes = ", ".join(map(str, batcher.preferred_batch_size))
    yield (
        "preferred_batch_size",
        sizes or "none",
        "Waiting requests are joined to a batch. A batch of one of these sizes runs at once.",
    )
    yield (
        "max_queue_delay_microseconds",
        f"{batcher.max_queue_delay_microseconds:,}",
        "The longest time a request waits for others to fill the batch. A longer delay gives "
        "larger batches, and a higher latency with few clients.",
    )


def _optimization(message: "ModelConfig") -> Iterator[Line]:
    accelerators = message.optimization.execution_accelerators
    for each in (
        *accelerators.gpu_execution_accelerator,
        *accelerators.cpu_execution_accelerator,
    ):
        values = ", ".join(f"{key}={value}" for key, value in sorted(each.parameters.items()))
        value = f"{each.name} ({values})" if values else each.name
        yield "execution_accelerators", value, ACCELERATORS.get(each.name, UNKNOWN)
    if message.optimization.cuda.graphs:
        why = (
            "The kernels are recorded once per batch size and then launched together. This saves "
            "CPU time between kernels."
        )
        sizes = [str(each.batch_size) for each in message.optimization.cuda.graph_spec]
        yield "cuda graphs", ", ".join(sizes) or "any size", why


def show_configuration(repository: Artifact) -> None:
    """Display what each model of a repository is configured to do, and below it the file. The model
    that clients ask comes first, and its file is not folded.
    """
    from google.protobuf import text_format
    from IPython.display import display
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    asked = str(repository.facts.get("model"))
    paths = sorted(repository.folder.glob(f"*/{CONFIGURATION}"))
    for path in sorted(paths, key=lambda path: path.parent.name != asked):
        message = text_format.Parse(path.read_text(), ModelConfig())
        shown = configuration_table(message, path)
        if path.parent.name == asked:
            shown = replace(shown, html=shown.html.replace("<details>", "<details open>"))
        display(shown)  # type: ignore[no-untyped-call]


def configuration_table(message: "ModelConfig", path: Path) -> Table:
    """Put a configuration into a table, and its file folded below."""
    place = f"{path.parent.name}/{path.name}"
    rows = [{"field": field, "value": value, "why": why} for field, value, why in explain(message)]
    shown = table(rows, f"Fields of {place}")
    file = f"<details><summary>{escape(place)}</summary><pre>{escape(path.read_text())}</pre>"
    return Table(f"{shown.html}{file}</details>", shown.caption)
