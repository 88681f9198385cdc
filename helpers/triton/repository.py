"""The deploy stage: a model repository with the artifact and a `config.pbtxt`. If the server has no
backend for the format, it also has the adapter and the format's runtime.

    repository/requirements.txt                packages of the Python that serves it
    repository/client.py sample.npz            a client, and what it sends: see `client`
    repository/<model>/config.pbtxt            the online scenario: dynamic batching
    repository/<model>/configs/offline.pbtxt   the offline one, by --model-config-name=offline
    repository/<model>/1/model.py runtime.py   for the Python backend only, with the artifact

A model of several parts has such a folder for each part, and one without files for the ensemble. A
lookup always runs in the Python backend. A model of a Triton repository is copied as it is.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from helpers import formats, models
from helpers.config import DeployConfig, artifact_folder
from helpers.errors import CheckpointError, ServerError
from helpers.inference import Component, chain, ensemble, prepare, require, served_dtype, threads
from helpers.models import Part, Tensor
from helpers.store import Artifact, create_artifact, from_root
from helpers.triton import native
from helpers.triton.client import write_client
from helpers.triton.server import EXACT

COMPANIONS = ("adapter.py",)  # copied into every repository: a change of it is a change here
CONFIGURATION = "config.pbtxt"
SCENARIOS = ("offline", "online")


def deploy(config: DeployConfig) -> Artifact:
    """Write the model repository of the experiment."""
    is_existing = bool(models.get(config.model).BACKEND)
    converted = None if is_existing else require(config, "convert")
    if is_existing:
        prepare(config)
    with create_artifact(artifact_folder(config, "deploy")) as (temporary, metadata):
        if converted:
            write_repository(temporary, config, converted)
        else:
            copy_existing(temporary, config)
        write_client(config, temporary)
        metadata["model"] = config.model
        metadata["threads"] = {scenario: threads(config, scenario) for scenario in SCENARIOS}
    return require(config, "deploy")


def copy_existing(folder: Path, config: DeployConfig) -> None:
    """Copy a Triton repository's model, renamed, into the empty `folder`, for both scenarios."""
    source, target = from_root(config.checkpoint), folder / config.model
    message = read_configuration(source)
    message.name = config.model
    shutil.copytree(source, target)
    (target / "configs").mkdir(exist_ok=True)
    for path in (target / CONFIGURATION, target / "configs/offline.pbtxt"):
        path.write_text(text_format.MessageToString(message))
    (folder / "requirements.txt").write_text("")


def read_configuration(folder: Path) -> pb.ModelConfig:
    """Read the model configuration in `folder`; raise CheckpointError without a valid one."""
    path = folder / CONFIGURATION
    try:
        return text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    except text_format.ParseError as error:
        raise CheckpointError(f"{path} is not a Triton model configuration: {error}") from None


def write_repository(folder: Path, config: DeployConfig, artifact: Artifact) -> None:
    """Write the repository of one model into the empty `folder`; `artifact` is the converted model.

    The repository holds no symbolic link, no absolute path and no import of this package.
    """
    components, served = ensemble.components(config, config.format), ensemble.served(config)
    is_fused, graph = len(served) < len(components), served[-1]
    if is_fused and config.server.is_native:
        raise ServerError("composition fused needs the adapter. Set server.backend to adapter.")
    modules: list[str] = []
    in_python = [model for model in served if model is not graph or not config.server.is_native]
    for component in served:
        offline, online = (
            model_config(config, scenario, component, component is graph) for scenario in SCENARIOS
        )
        version = _write_configs(folder / component.part.name, offline, online)
        members = components if is_fused else (component,)
        others = {other.file for other in components if other not in members}
        names = [name for name in artifact.files if Path(name).parts[0] not in others]
        ensemble.link_files(artifact, version, names)
        if component in in_python:
            shutil.copyfile(Path(__file__).with_name("adapter.py"), version / "model.py")
            _copy_code(component.code, version / "runtime")
        if is_fused:
            _write_chain(components, version)
        composition = ensemble.composition(config)
        if composition and components[0] in members:
            modules += composition.configure(config, version / components[0].file)
        if component.is_store:
            online.parameters["exact"].string_value = "yes"
            path = version.parent / f"configs/{EXACT}.pbtxt"
            path.write_text(text_format.MessageToString(online))
    if len(served) > 1:
        message = ensemble_config(config, [component.part for component in components])
        _write_configs(folder / config.model, message, message)
    modules += [module for model in in_python for module in ("numpy", *model.modules)]
    if graph in in_python and config.device == "gpu":
        modules.append("torch")  # the adapter's, for tensors on the GPU
    lines = []
    for name in dict.fromkeys(map(formats.distribution, modules)):
        pin = (formats.installed_version(name) or "").partition("+")[0]  # without a label as +cpu
        lines.append(f"{name}=={pin}\n" if pin else f"{name}\n")
    (folder / "requirements.txt").write_text("".join(lines))


def _copy_code(code: Path, target: Path) -> None:
    """Copy a module to a file that ends in .py, or copy a package."""
    if code.is_dir():
        shutil.copytree(code, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    else:
        shutil.copyfile(code, target.with_suffix(".py"))


def _write_chain(components: Iterable[Component], version: Path) -> None:
    """Write the list of the chain's components, and the code of each."""
    steps = []
    for component in components:
        code = f"served_{component.file.partition('.')[0]}"
        _copy_code(component.code, version / code)
        step = ensemble.step(component.part)
        wires = {"inputs": step.inputs, "outputs": step.outputs, "flat": step.flat}
        steps.append({"code": code, "file": component.file, **wires})
    (version / chain.FILE).write_text(json.dumps(steps, indent=1) + "\n")


def _write_configs(model: Path, offline: pb.ModelConfig, online: pb.ModelConfig) -> Path:
    """Write a model's two configurations; return the folder of its one version."""
    (model / "configs").mkdir(parents=True)
    (model / "1").mkdir()
    (model / "configs/offline.pbtxt").write_text(text_format.MessageToString(offline))
    (model / CONFIGURATION).write_text(text_format.MessageToString(online))
    return model / "1"


def model_config(
    config: DeployConfig, scenario: str, component: Component, batched: bool
) -> pb.ModelConfig:
    """Build Triton's `ModelConfig` of a component for `scenario` ("offline" or "online").

    Only the graph is `batched`, not a lookup before it, and only online. Offline each request runs
    as its own batch, without waiting for others. Raises `ServerError` if the server's release has
    no backend for the format.
    """
    part, in_gpu, count = component.part, config.device == "gpu", threads(config, scenario)
    signature = [[*part.inputs.values()], [*part.outputs.values()]]
    if batched:  # TensorRT's types are its engine's, not the lookup's
        signature = [[_served(config, tensor) for tensor in tensors] for tensors in signature]
    message = _message(config, part.name, *signature)
    if batched and config.server.is_native:
        native.complete(message, config, component.file, count, part.flat)
    else:
        message.backend = "python"
        parameters = {"file": component.file, "threads": str(count), "device": config.device}
        if batched and in_gpu:
            parameters["FORCE_CPU_ONLY_INPUT_TENSORS"] = "no"  # tensors on the GPU stay there
        for name, value in parameters.items():
            message.parameters[name].string_value = value
    message.instance_group.add(
        count=1 if component.is_store else getattr(config.instances, scenario),
        kind=pb.ModelInstanceGroup.KIND_GPU if in_gpu else pb.ModelInstanceGroup.KIND_CPU,
        gpus=[0] if in_gpu else [],  # of those visible
    )
    if part.flat:
        message.max_batch_size = 0
    # joined flat requests would not be one request, and zeros would fill a cache
    if part.flat or component.is_store:
        return message
    if scenario == "online" and batched:
        message.dynamic_batching.preferred_batch_size.extend(config.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = config.max_queue_delay_us
    warm = {1, *config.preferred_batch_sizes} if models.get(config.model).TAKES_ZEROS else ()
    for batch_size in sorted(warm):
        warmup = message.model_warmup.add(name=f"batch_{batch_size}", batch_size=batch_size)
        for tensor in message.input:
            entry = warmup.inputs[tensor.name]
            entry.data_type, entry.zero_data = tensor.data_type, True
            entry.dims.extend(tensor.dims)
    return message


def ensemble_config(config: DeployConfig, parts: Sequence[Part]) -> pb.ModelConfig:
    """Build the `ModelConfig` that sends a request through all `parts`."""
    model, graph = ensemble.whole(config), parts[-1]
    inputs = [
        _served(config, tensor) if name in graph.inputs else tensor
        for name, tensor in model.inputs.items()
    ]
    message = _message(config, config.model, inputs, model.outputs.values())
    message.platform = "ensemble"
    for part in parts:
        step = message.ensemble_scheduling.step.add(model_name=part.name, model_version=-1)
        step.input_map.update({tensor.name: name for name, tensor in part.inputs.items()})
        step.output_map.update({tensor.name: name for name, tensor in part.outputs.items()})
    return message


def _served(config: DeployConfig, tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=served_dtype(config, tensor.dtype))


def _message(
    config: DeployConfig, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]
) -> pb.ModelConfig:
    message = pb.ModelConfig(name=name, max_batch_size=config.max_batch_size)
    for field, tensors in ((message.input, inputs), (message.output, outputs)):
        for tensor in tensors:
            dtype = np_to_triton_dtype(np.dtype(tensor.dtype))
            field.add(name=tensor.name, data_type=f"TYPE_{dtype}", dims=tensor.shape)
    return message
