"""Each field of a model's `config.pbtxt`, its value, and its meaning from `config_fields.yaml`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from helpers.display import Table, table
from helpers.store import Artifact
from helpers.triton.native import backend_of

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

COMPANIONS = ("config_fields.yaml",)
Line = tuple[str, str, str]  # field, value, why
CONFIGURATION = "config.pbtxt"
KINDS = {1: "on a GPU", 2: "on the CPU"}  # ModelInstanceGroup.Kind
UNKNOWN = "See Triton's documentation of the model configuration."


@cache
def _sentences() -> dict[str, dict[str, str]]:
    text = Path(__file__).with_name(COMPANIONS[0]).read_text(encoding="utf-8")
    sentences: dict[str, dict[str, str]] = yaml.safe_load(text)
    return sentences


def meaning(name: str, kind: str = "fields") -> str:
    """Return the sentence on a field, or on one of the "backends", "accelerators", "parameters"."""
    return _sentences()[kind].get(name, UNKNOWN)


def describe_config(message: "ModelConfig") -> Iterator[Line]:
    """Explain each field that a configuration sets, and the batcher where it has none."""
    yield "name", message.name, meaning("name").format(value=message.name)
    for field in ("platform", "backend"):
        if value := str(getattr(message, field)):
            yield field, value, meaning(backend_of(message), "backends")
    if name := message.default_model_filename:
        yield "default_model_filename", name, meaning("default_model_filename")
    size = message.max_batch_size
    yield "max_batch_size", f"{size:,}", meaning("max_batch_size" if size else "no batch dimension")
    yield from _tensors(message)
    for group in message.instance_group:
        copies = "copy of the model runs" if group.count == 1 else "copies of the model run at once"
        value = f"{group.count} {KINDS.get(group.kind, '')}".strip()
        why = f"{group.count} {copies}. Each copy takes the model's memory."
        yield "instance_group", value, why
    if message.platform != "ensemble":
        yield from _batcher(message)
    for step in message.ensemble_scheduling.step:
        wires = [f"{name} as {tensor}" for tensor, name in sorted(step.input_map.items())]
        wires += [f"{tensor} becomes {name}" for tensor, name in sorted(step.output_map.items())]
        yield f"step {step.model_name}", ", ".join(wires), meaning("step")
    yield from _optimization(message)
    for name, parameter in sorted(message.parameters.items()):
        yield f"parameters {name}", parameter.string_value, meaning(name, "parameters")
    if sizes := [str(warmup.batch_size) for warmup in message.model_warmup]:
        yield "model_warmup", ", ".join(sizes), meaning("model_warmup")


def _tensors(message: "ModelConfig") -> Iterator[Line]:
    types = message.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    without = " without the batch dimension" if message.max_batch_size else ""
    for kind, tensors in (("input", message.input), ("output", message.output)):
        for tensor in tensors:
            shape = f"{types[tensor.data_type].name} {[*tensor.dims]}"
            free = ", -1 for any size" if -1 in tensor.dims else ""
            yield f"{kind} {tensor.name}", shape, f"{meaning('tensor')}{without}{free}."


def _batcher(message: "ModelConfig") -> Iterator[Line]:
    if not message.HasField("dynamic_batching"):
        yield "dynamic_batching", "none", meaning("no dynamic_batching")
        return
    batcher = message.dynamic_batching
    sizes = ", ".join(map(str, batcher.preferred_batch_size))
    yield "preferred_batch_size", sizes or "none", meaning("preferred_batch_size")
    delay = "max_queue_delay_microseconds"
    yield delay, f"{batcher.max_queue_delay_microseconds:,}", meaning(delay)


def _optimization(message: "ModelConfig") -> Iterator[Line]:
    used = message.optimization.execution_accelerators
    for accelerator in (*used.gpu_execution_accelerator, *used.cpu_execution_accelerator):
        parameters = sorted(accelerator.parameters.items())
        values = ", ".join(f"{key}={value}" for key, value in parameters)
        value = f"{accelerator.name} ({values})" if values else accelerator.name
        yield "execution_accelerators", value, meaning(accelerator.name, "accelerators")
    if message.optimization.cuda.graphs:
        sizes = [str(spec.batch_size) for spec in message.optimization.cuda.graph_spec]
        yield "cuda graphs", ", ".join(sizes) or "any size", meaning("cuda graphs")


def show_configuration(repository: Artifact) -> None:
    """Display the configuration of each model of a repository, and the file below it. The model
    that clients send requests to is the first, and its file is not folded.
    """
    from google.protobuf import text_format
    from IPython.display import display
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    model = repository.facts.get("model")
    paths = repository.folder.glob(f"*/{CONFIGURATION}")
    for path in sorted(paths, key=lambda path: (path.parent.name != model, path)):
        message = text_format.Parse(path.read_text(), ModelConfig())
        shown = configuration_table(message, path)
        if path.parent.name == model:
            shown = replace(shown, html=shown.html.replace("<details>", "<details open>"))
        display(shown)  # type: ignore[no-untyped-call]


def configuration_table(message: "ModelConfig", path: Path) -> Table:
    """Return a configuration as a table, and its file folded below."""
    location = f"{path.parent.name}/{path.name}"
    columns = ("field", "value", "why")
    rows = [dict(zip(columns, line, strict=True)) for line in describe_config(message)]
    shown = table(rows, f"Fields of {location}")
    file = f"<details><summary>{escape(location)}</summary><pre>{escape(path.read_text())}</pre>"
    return Table(f"{shown.html}{file}</details>", shown.caption)
