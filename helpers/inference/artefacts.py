"""What is made from what: the export, the converted model and the model repository."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from helpers import formats, models
from helpers.config import STAGE, ConvertConfig, ExportConfig, StageConfig, command, folder_of
from helpers.errors import ArtefactError, DeploymentError, FormatError
from helpers.inference import ensemble
from helpers.inference.datasets import (
    Prepared,
    checkpoint_name,
    dataset_name,
    example_inputs,
    open_dataset,
)
from helpers.models import Dataset
from helpers.store import Artefact, find, link_or_copy, making, verify


def require(config: ExportConfig, stage: str) -> Artefact:
    """Give the artefact of an earlier stage, all of it verified; raise `ArtefactError` naming the
    command that makes it.
    """
    artefact = find(folder_of(config, stage))
    if artefact is None:
        raise ArtefactError(
            f"{config.model} {config.experiment} has no result of {stage} yet: "
            f"run {command(config, stage)}"
        )
    if reason := artefact.facts.get("red"):
        raise ArtefactError(f"{stage} of {config.model} {config.experiment} did not hold: {reason}")
    return verify(artefact)


def _make(
    config: ExportConfig,
    stage: str,
    source: Any,
    before: Path | Artefact,
    dataset: Dataset,
    name: str,
    precision: str,
) -> Artefact:
    """Write the artefact of `stage` in the format `name` from `source`; what comes before the graph
    is taken from `before`.
    """
    fmt, graph = formats.get(name), ensemble.parts(config)[-1]
    folder = folder_of(config, stage)
    with making(folder) as (temporary, facts):
        started = time.monotonic()
        ensemble.write_before_graph(config, before, temporary)
        example = ensemble.graph_inputs(config, temporary, example_inputs(config, dataset))
        try:
            fmt.make(
                source,
                temporary / fmt.FILE,
                precision=precision,
                inputs=example,
                outputs=tuple(tensor.name for tensor in graph.outputs.values()),
                **_made_for(config, name, facts),
            )
        except (DeploymentError, OSError):
            raise
        except Exception as error:  # exporters raise anything
            line = " ".join(str(error).split())[:300]
            raise FormatError(
                f"{name} {precision} of {config.model} failed: {type(error).__name__}: {line}"
            ) from error
        facts.update(format=name, precision=precision, seconds=round(time.monotonic() - started, 1))
    artefact = find(folder)
    assert artefact is not None
    return artefact


def _made_for(config: ExportConfig, name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Give what a format asks for whose file fits one experiment and one server only: the fields
    that it names and, unless the server is embedded, an image of its release to make it in. What
    writes ONNX is told which opset the server reads.
    """
    chosen = {field: getattr(config, field) for field in formats.built_for(name)}
    if config.opset and hasattr(formats.get(name), "OPSET"):
        chosen["opset"] = config.opset
    if formats.built_for(name) and config.server.kind != "embedded":
        facts["release"] = config.server.release
        chosen["in_image"] = partial(_run, config, formats.image(name, config.server.release))
    return chosen


def _run(config: StageConfig, image: str, folder: Path, command: list[str]) -> None:
    """Run `command` in a container of `image`; after its first word come names in `folder`."""
    from helpers.triton import docker  # loads Triton's client: only where it is needed

    server = config.server.model_copy(update={"image": image})
    words = [command[0], *(f"/build/{name}" for name in command[1:])]
    docker.run_in_image(config.model_copy(update={"server": server}), words, {folder: "/build"})


def export(config: ExportConfig, prepared: Prepared) -> Artefact:
    """Export the trained network to `config.export_format` in `config.export_precision`."""
    network = models.get(config.model).build(config, prepared.checkpoint)
    return _make(
        config,
        "export",
        network,
        prepared.checkpoint,
        prepared.dataset,
        config.export_format,
        config.export_precision,
    )


def convert(config: ConvertConfig) -> Artefact:
    """Convert the export to the format that is served; where that is the same format, the file is
    taken as it is.
    """
    exported = require(config, "export")
    source = formats.get(config.export_format).FILE
    if config.format != config.export_format:
        return _make(
            config,
            "convert",
            exported.folder / source,
            exported,
            open_dataset(config),
            config.format,
            config.precision,
        )
    with making(folder_of(config, "convert")) as (temporary, facts):
        for name in exported.files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(exported.folder / name, temporary / name)
        facts.update(
            format=config.format, precision=config.precision, seconds=0.0, note="taken as exported"
        )
    return require(config, "convert")


def inputs(config: ExportConfig, stage: str) -> dict[str, str]:
    """Identify what `stage` works on: hashes of artefacts, names of what the recipe makes,
    fingerprints of users' files.
    """
    found = {"dataset": dataset_name(config)}
    if stage == "export":
        return found | {"checkpoint": checkpoint_name(config)}
    before = STAGE[stage].needs
    artefact = find(folder_of(config, before))
    return found | {before: artefact.sha256 if artefact else "missing"}
