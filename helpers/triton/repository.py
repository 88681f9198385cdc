"""Writing a model repository: `config.pbtxt` from Triton's own message, the adapter, the format's
runtime and the artefact.

    repository/requirements.txt                what the Python that serves it must have
    repository/<model>/config.pbtxt            the online scenario: dynamic batching
    repository/<model>/configs/offline.pbtxt   the offline one, by --model-config-name=offline
    repository/<model>/1/model.py runtime.py   and the artefact

A model of several parts has such a folder for each of them, and one without files for the ensemble.
"""

import shutil
from collections.abc import Iterable
from importlib.metadata import version
from inspect import getfile
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import composition, formats, models
from helpers.composition import Piece
from helpers.models import Tensor
from helpers.workspace import Artefact, link_or_copy

SCENARIOS = ("offline", "online")
_TYPES = {
    "float16": pb.TYPE_FP16,
    "float32": pb.TYPE_FP32,
    "int32": pb.TYPE_INT32,
    "int64": pb.TYPE_INT64,
}


def model_config(config: Any, scenario: str, piece: Piece, threads: int, batched: bool) -> Any:
    """Build Triton's `ModelConfig` of a piece for `scenario` ("offline" or "online").

    Offline there is no batcher: a request's own batch is what runs, and nothing waits for company.
    """
    part = piece.part
    message = _message(config, part.name, part.inputs.values(), part.outputs.values())
    message.backend = "python"
    count = config.instances.offline if scenario == "offline" else config.instances.online
    kind = (
        pb.ModelInstanceGroup.KIND_GPU if config.device == "gpu" else pb.ModelInstanceGroup.KIND_CPU
    )
    message.instance_group.add(count=count, kind=kind)
    if scenario == "online" and batched:
        message.dynamic_batching.preferred_batch_size.extend(config.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = config.max_queue_delay_us
    for batch_size in sorted({1, *config.preferred_batch_sizes}):
        warmup = message.model_warmup.add(name=f"batch_{batch_size}", batch_size=batch_size)
        for tensor in part.inputs.values():
            entry = warmup.inputs[tensor.name]
            entry.data_type, entry.zero_data = _TYPES[tensor.dtype], True
            entry.dims.extend(tensor.shape)
    parameters = {"file": piece.file, "threads": str(threads), "device": config.device}
    for name, value in parameters.items():
        message.parameters[name].string_value = value
    return message


def ensemble_config(config: Any, pieces: Iterable[Piece]) -> Any:
    """Build the `ModelConfig` that sends a request through all `pieces`."""
    model = models.get(config.model)
    message = _message(config, config.model, model.inputs(config), model.outputs(config))
    message.platform = "ensemble"
    for part in (piece.part for piece in pieces):
        step = message.ensemble_scheduling.step.add(model_name=part.name, model_version=-1)
        step.input_map.update({own.name: name for name, own in part.inputs.items()})
        step.output_map.update({own.name: name for name, own in part.outputs.items()})
    return message


def _message(config: Any, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> Any:
    message = pb.ModelConfig(name=name, max_batch_size=config.max_batch_size)
    for field, tensors in ((message.input, inputs), (message.output, outputs)):
        for tensor in tensors:
            field.add(name=tensor.name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
    return message


def write_repository(
    folder: Path, config: Any, artefact: Artefact, threads: dict[str, int]
) -> None:
    """Write the repository of one model into the empty `folder`; `artefact` is the
    converted model.

    The repository holds no symbolic link, no absolute path and no import of this package.
    """
    pieces = composition.pieces(config, config.format)
    graph = pieces[-1]
    for piece in pieces:
        messages = {
            scenario: model_config(config, scenario, piece, threads[scenario], piece is graph)
            for scenario in SCENARIOS
        }
        served = _write_configs(folder / piece.part.name, messages)
        others = {each.file for each in pieces if each is not piece}
        for name in artefact.files:
            if Path(name).parts[0] not in others:
                (served / name).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(artefact.folder / name, served / name)
        shutil.copyfile(Path(__file__).with_name("adapter.py"), served / "model.py")
        shutil.copyfile(getfile(piece.load), served / "runtime.py")
    if len(pieces) > 1:
        message = ensemble_config(config, pieces)
        _write_configs(folder / config.model, dict.fromkeys(SCENARIOS, message))
    modules = dict.fromkeys(("numpy", *(module for each in pieces for module in each.modules)))
    runtimes = [formats.distribution(module) for module in modules]
    (folder / "requirements.txt").write_text(
        "".join(f"{name}=={version(name)}\n" for name in runtimes)
    )


def _write_configs(model: Path, messages: dict[str, Any]) -> Path:
    """Write a model's two configurations; give the folder of its one version."""
    (model / "configs").mkdir(parents=True)
    (model / "1").mkdir()
    for scenario, name in (("online", "config.pbtxt"), ("offline", "configs/offline.pbtxt")):
        (model / name).write_text(text_format.MessageToString(messages[scenario]))
    return model / "1"
