"""The artifacts of an experiment: its export and its converted model, made and verified."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from helpers import formats, models
from helpers.config import ConvertConfig, ExportConfig, artifact_folder, command, needed
from helpers.errors import ArtifactError, DeploymentError, FormatError, one_line
from helpers.formats import Build, Format, Setting, Source
from helpers.inference import datasets, ensemble, work
from helpers.models import Arrays, Dataset, Network
from helpers.store import Artifact, create_artifact, find_artifact, is_remote, verify

# Runs a command in a container of an image: takes the image, a folder, and the command, whose words
# after the first are names of files in that folder.
RunInImage = Callable[[str, Path, list[str]], None]
DESCRIBED = ("operators", "opset")  # facts of a file that `formats.GraphFacts` has
EXAMPLE_BATCH = 2  # samples for an exporter, which would take a batch of one for a constant

_verified: dict[Path, tuple[str, list[tuple[int, int]]]] = {}  # by folder, for this process


def require(config: ExportConfig, stage: str) -> Artifact:
    """Return the artifact of an earlier stage, and verify its files.

    Files are hashed once per process, and again if one has changed since. Raises `ArtifactError`
    that names the command which makes the artifact. What is served as it was exported needs no
    `convert` before.
    """
    artifact = find_artifact(artifact_folder(config, stage))
    if artifact is None and stage == "convert" and isinstance(config, ConvertConfig):
        exported = find_artifact(artifact_folder(config, "export"))
        if exported and is_as_exported(config):
            artifact = _taken(config, require(config, "export"))
    name = f"{config.model} {config.experiment}"
    if artifact is None:
        raise ArtifactError(f"{name} has no {stage} result yet. Run: {command(config, stage)}")
    if artifact.failure:
        raise ArtifactError(f"{name} failed its parity check in {stage}: {artifact.failure}")
    if is_remote(artifact):
        how = "Add the cluster's --scheduler, or run with --fetch."
        raise ArtifactError(f"The {stage} artifact of {name} is on another machine. {how}")
    state = artifact.sha256, _stamps(artifact)
    if _verified.get(artifact.folder) != state:
        verify(artifact)
        _verified[artifact.folder] = state
    return artifact


def _stamps(artifact: Artifact) -> list[tuple[int, int]]:
    """Return inode and ctime of each file; a program that restores mtimes cannot set ctime."""
    paths = (artifact.folder / name for name in artifact.files)
    statuses = (path.stat() for path in paths if path.is_file())
    return [(status.st_ino, status.st_ctime_ns) for status in statuses]


def _made(folder: Path) -> Artifact:
    """Return an artifact that this process has just made and hashed."""
    artifact = find_artifact(folder)
    assert artifact is not None
    return artifact


def _make(
    config: ExportConfig,
    source: Source,
    origin: Path | Artifact,
    dataset: Dataset,
    run_in_image: RunInImage | None = None,
) -> Artifact:
    """Write the artifact of a stage from `source`, and the parts before the graph from `origin`."""
    name, precision = config.export_format, str(config.export_precision)
    if isinstance(config, ConvertConfig):
        name, precision = config.format, config.precision
    fmt, release = formats.get(name), config.server.release
    folder = artifact_folder(config, config.stage)
    with create_artifact(folder) as (temporary, metadata):
        started = time.monotonic()
        ensemble.write_preprocessing(config, origin, temporary)
        batch = datasets.some(config, dataset, models.at_once(config.model, EXAMPLE_BATCH))
        build = _build(config, fmt, precision, ensemble.graph_inputs(config, temporary, batch))
        build = replace(build, calibration=_calibration(config, temporary))
        if fmt.IMAGE and run_in_image and config.server.is_native:
            metadata["release"] = release
            image = fmt.IMAGE.format(release=release)
            build = replace(build, in_image=partial(run_in_image, image))
        try:
            fmt.make(source, temporary / fmt.FILE, build)
        except (DeploymentError, OSError):
            raise
        except Exception as error:  # exporters raise anything
            what = f"{config.model} cannot be built as {name} {precision}"
            reason = f"{type(error).__name__}: {one_line(error, 300)}"
            raise FormatError(f"{what}: {reason}") from error
        metadata.update(
            format=name, precision=precision, seconds=round(time.monotonic() - started, 1)
        )
        metadata.update(_described(temporary / fmt.FILE, fmt), calls=list(build.calls))
        if config.stage == "export":
            metadata["work"] = _work(temporary / fmt.FILE, build)
    return _made(folder)


def _build(config: ExportConfig, fmt: Format, precision: str, inputs: Arrays) -> Build:
    """Return the build settings of an artifact, without its calibration."""
    graph = ensemble.parts(config)[-1]
    return Build(
        precision,
        inputs=inputs,
        tolerances=models.get(config.model).TOLERANCES[precision],
        outputs=tuple(tensor.name for tensor in graph.outputs.values()),
        samples=EXAMPLE_BATCH if graph.flat else 0,
        opset=config.opset,
        **config.model_dump(include=set(fmt.DEPENDS_ON)),
    )


def asked(config: ConvertConfig) -> list[Setting]:
    """Return the settings of the conversion other than format and precision."""
    if is_as_exported(config):
        return []
    settings, fmt = list[Setting](), formats.get(config.format)
    if config.calibration:
        count, seed = config.calibration
        most, mean = models.get(config.model).TOLERANCES["int8"]
        why = "Their range decides the scales of the 8-bit integers. None of them is evaluated."
        settings.append(Setting("calibration", f"{count:,} training samples, seed {seed}", why))
        if config.device == "cpu":
            why = (
                "The largest and the mean difference, in standard deviations of an output. Beyond "
                "them, the layer that costs most accuracy goes back to fp32."
            )
            settings.append(Setting("tolerances", f"{most:.2g} and {mean:.2g}", why))
    if fmt.asks:
        inputs = ensemble.example_inputs(config, EXAMPLE_BATCH)
        settings += fmt.asks(_build(config, fmt, config.precision, inputs))
    return settings


def is_as_exported(config: ConvertConfig) -> bool:
    """Return whether the exported file is what is served, and nothing is converted."""
    return (config.format, config.precision) == (config.export_format, config.export_precision)


def _described(path: Path, fmt: Format) -> dict[str, JsonValue]:
    """Return the operators of a file, or the reason why they cannot be counted."""
    try:
        return {**fmt.describe(path)} if fmt.describe else {}  # type: ignore[dict-item]
    except Exception as error:  # readers of protobuf and of TorchScript raise anything
        return {"operators": f"not counted: {' '.join(str(error).split())[-200:]}"}


def _calibration(config: ExportConfig, folder: Path) -> list[Arrays]:
    """Return calibration batches of the graph's inputs; `folder` has the parts before it."""
    if not isinstance(config, ConvertConfig) or config.calibration is None:
        return []
    (count, seed), dataset = config.calibration, datasets.dataset_place(config)
    model = models.get(config.model)
    drawn = model.training_samples(config, dataset.path, count, seed)
    samples = datasets.request(config, drawn)
    size = models.at_once(config.model, model.CALIBRATION[1])
    batches = ({k: v[i : i + size] for k, v in samples.items()} for i in range(0, count, size))
    return [ensemble.graph_inputs(config, folder, batch) for batch in batches]


def _work(path: Path, build: Build) -> JsonValue:
    """Return the work of the exported graph per sample, or the reason why it cannot be counted."""
    try:
        return asdict(work.count(path, build.inputs, build.samples))
    except Exception as error:  # OpenVINO's front ends raise anything
        return f"not counted: {' '.join(str(error).split())[-200:]}"


def build(config: ExportConfig, prepared: datasets.Prepared) -> Network:
    """Build the trained network in its framework, as it is exported."""
    return models.get(config.model).build(config, prepared.checkpoint)


def export(config: ExportConfig, prepared: datasets.Prepared, network: Network = None) -> Artifact:
    """Export the trained network, built unless it is given, to the configured format."""
    source = build(config, prepared) if network is None else network
    source = source.content if isinstance(source, models.Graph) else source
    return _make(config, source, prepared.checkpoint, prepared.dataset)


def convert(config: ConvertConfig, run_in_image: RunInImage) -> Artifact:
    """Convert the export to the format that is served, or take its files if that is its own."""
    exported = require(config, "export")
    if not is_as_exported(config):
        source = exported.folder / formats.get(config.export_format).FILE
        return _make(config, source, exported, datasets.open_dataset(config), run_in_image)
    return _taken(config, exported)


def _taken(config: ConvertConfig, exported: Artifact) -> Artifact:
    folder = artifact_folder(config, "convert")
    with create_artifact(folder) as (temporary, metadata):
        ensemble.link_files(exported, temporary, exported.files)
        metadata.update(format=config.format, precision=config.precision, seconds=0.0)
        metadata.update({key: exported.facts[key] for key in DESCRIBED if key in exported.facts})
        metadata["note"] = "taken as exported"
    return _made(folder)


def inputs(config: ExportConfig, stage: str) -> dict[str, str]:
    """Identify the inputs of `stage`: its data set, and its checkpoint or the previous artifact."""
    identifiers = {"dataset": datasets.dataset_place(config).name}
    before = "" if stage == "export" else needed(config.model, stage)
    if not before:
        return identifiers | {"checkpoint": datasets.checkpoint_place(config).name}
    artifact = find_artifact(artifact_folder(config, before))
    return identifiers | {before: artifact.sha256 if artifact else "missing"}
