"""Writing a model repository: `config.pbtxt` from Triton's own message, the adapter, the format's
runtime and the artefact.

    repository/requirements.txt                what the Python that serves it must have
    repository/<model>/config.pbtxt            the online scenario: dynamic batching
    repository/<model>/configs/offline.pbtxt   the offline one, by --model-config-name=offline
    repository/<model>/1/model.py runtime.py   and the artefact
"""

import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import formats
from helpers.models import Tensor
from helpers.workspace import Artefact, link_or_copy

SCENARIOS = ("offline", "online")
_TYPES = {
    "float16": pb.TYPE_FP16,
    "float32": pb.TYPE_FP32,
    "int32": pb.TYPE_INT32,
    "int64": pb.TYPE_INT64,
}


def model_config(
    config: Any, scenario: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], threads: int
) -> Any:
    """Build Triton's `ModelConfig` of an experiment for `scenario` ("offline" or "online").

    Offline there is no batcher: a request's own batch is what runs, and nothing waits for company.
    """
    message = pb.ModelConfig(
        name=config.model, backend="python", max_batch_size=config.max_batch_size
    )
    for field, tensors in ((message.input, inputs), (message.output, outputs)):
        for tensor in tensors:
            field.add(name=tensor.name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
    count = config.instances.offline if scenario == "offline" else config.instances.online
    kind = (
        pb.ModelInstanceGroup.KIND_GPU if config.device == "gpu" else pb.ModelInstanceGroup.KIND_CPU
    )
    message.instance_group.add(count=count, kind=kind)
    if scenario == "online":
        message.dynamic_batching.preferred_batch_size.extend(config.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = config.max_queue_delay_us
    for batch_size in sorted({1, *config.preferred_batch_sizes}):
        warmup = message.model_warmup.add(name=f"batch_{batch_size}", batch_size=batch_size)
        for tensor in inputs:
            entry = warmup.inputs[tensor.name]
            entry.data_type, entry.zero_data = _TYPES[tensor.dtype], True
            entry.dims.extend(tensor.shape)
    parameters = {
        "file": formats.get(config.format).FILE,
        "threads": str(threads),
        "device": config.device,
    }
    for name, value in parameters.items():
        message.parameters[name].string_value = value
    return message


def write_repository(
    folder: Path,
    config: Any,
    artefact: Artefact,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    threads: dict[str, int],
) -> None:
    """Write the repository of one model into the empty `folder`; `artefact` is the
    converted model.

    The repository holds no symbolic link, no absolute path and no import of this package.
    """
    model = folder / config.model
    served = model / "1"
    (model / "configs").mkdir(parents=True)
    for scenario, path in (
        ("online", model / "config.pbtxt"),
        ("offline", model / "configs/offline.pbtxt"),
    ):
        message = model_config(config, scenario, inputs, outputs, threads[scenario])
        path.write_text(text_format.MessageToString(message))
    for name in artefact.files:
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(artefact.folder / name, served / name)
    shutil.copyfile(Path(__file__).with_name("adapter.py"), served / "model.py")
    shutil.copyfile(formats.runtime_file(config.format), served / "runtime.py")
    modules = ("numpy", *formats.get(config.format).RUNTIME)
    runtimes = [formats.distribution(module) for module in modules]
    (folder / "requirements.txt").write_text(
        "".join(f"{name}=={version(name)}\n" for name in runtimes)
    )
