"""What is made from what: data set and checkpoint, then the export, the converted model and the
model repository.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers import formats, models
from helpers.errors import ArtefactError, DataError, DeploymentError, FormatError, ParameterError
from helpers.models import Arrays, Dataset
from helpers.schema import Config
from helpers.workspace import (
    Artefact,
    digest,
    file_digest,
    find,
    from_root,
    link_or_copy,
    making,
    outputs,
    shown,
    verify,
)

EXAMPLE_BATCH = 2  # samples that an exporter sees: one alone would be taken for a constant


@dataclass(frozen=True)
class Prepared:
    """A data set and a checkpoint on disk, ready to use."""

    dataset: Dataset
    checkpoint: Path
    hashes: dict[str, str]  # of what the results rest on


def recipe_key(config: Config, kind: str) -> str:
    """Name what the model's recipe makes: `kind` is "dataset", "checkpoint" or "reference"; new
    recipe, new name.
    """
    package = Path(models.__file__).parent / config.model
    value: dict[str, Any] = config.slice("data")
    if kind == "reference":
        value |= {
            "source": [file_digest(path) for path in sorted(package.glob("*.py"))],
            **inputs(config, "export"),
        }
    else:
        value |= {
            name: file_digest(package / f"{name}.py") for name in models.get(config.model).RECIPE
        }
    return f"{config.model}-{kind}-{digest(value)[:12]}"


def is_generated(config: Config) -> bool:
    """Whether the experiment's data set is one that the package generates."""
    return config.dataset in models.get(config.model).GENERATED


def dataset_folder(config: Config) -> Path:
    """Where the data set lies or will lie."""
    return (
        outputs() / "data" / recipe_key(config, "dataset")
        if is_generated(config)
        else from_root(config.dataset)
    )


def checkpoint_file(config: Config) -> Path:
    """Where the checkpoint lies or will lie."""
    if config.checkpoint != "fitted":
        return from_root(config.checkpoint)
    if not is_generated(config):
        raise ParameterError(
            f"checkpoint 'fitted' needs a generated data set, and dataset is '{config.dataset}': "
            "give the path of a checkpoint"
        )
    return outputs() / "data" / recipe_key(config, "checkpoint") / "checkpoint"


def prepare(config: Config) -> Prepared:
    """Make the data set and the checkpoint ready; what was generated or fitted before is taken from
    outputs/data.
    """
    model = models.get(config.model)
    folder, checkpoint = dataset_folder(config), checkpoint_file(config)
    if is_generated(config) and find(folder) is None:
        print(f"generating the data set '{config.dataset}'")
        with making(folder) as (temporary, _):
            model.prepare_dataset(config, temporary)
    dataset = model.open_dataset(config, folder)
    if config.checkpoint == "fitted" and find(checkpoint.parent) is None:
        print("fitting a small checkpoint to it")
        with making(checkpoint.parent) as (temporary, facts):
            started = time.monotonic()
            model.prepare_checkpoint(config, folder, temporary / checkpoint.name)
            facts["fitted_seconds"] = round(time.monotonic() - started, 1)
    hashes = {"dataset": _content(folder), "checkpoint": _content(checkpoint)}
    return Prepared(dataset, checkpoint, hashes)


def _content(path: Path) -> str:
    """Give the SHA-256 of what was made or of a file; of a user's folder, of names and sizes."""
    for folder in (path, path.parent):
        if made := find(folder):
            return made.sha256
    return file_digest(path) if path.is_file() else fingerprint(path)


def open_dataset(config: Config) -> Dataset:
    """Open the data set that the export stage made ready."""
    if is_generated(config) and find(dataset_folder(config)) is None:
        raise ArtefactError(
            f"the data set of {config.model} is not there yet: run {command(config, 'export')}"
        )
    return models.get(config.model).open_dataset(config, dataset_folder(config))


def folder_of(config: Config, stage: str) -> Path:
    """Where the artefact of `stage` lies or will lie."""
    return outputs() / config.target / "artefacts" / config.key(stage)


def command(config: Config, stage: str) -> str:
    """Spell the command that runs `stage` of this experiment."""
    only = f"--model {config.model} --experiment {config.experiment} --stage {stage}"
    return f"triton-notebooks run params/{config.target}.yaml {only}"


def require(config: Config, stage: str) -> Artefact:
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


def requests(
    config: Config, dataset: Dataset, batch_size: int, limit: int | None = None
) -> Iterator[Arrays]:
    """Yield the data set's batches as the exported network takes them: its inputs only, in its
    order, in its types.
    """
    tensors = models.get(config.model).inputs(config)
    for batch in dataset.batches(batch_size, limit):
        yield {
            tensor.name: np.ascontiguousarray(batch[tensor.name], dtype=tensor.dtype)
            for tensor in tensors
        }


def example_inputs(config: Config, dataset: Dataset) -> Arrays:
    """Take a small real batch, for an exporter to trace or to infer shapes from."""
    return next(requests(config, dataset, EXAMPLE_BATCH, EXAMPLE_BATCH))


def _make(
    config: Config, stage: str, source: Any, dataset: Dataset, name: str, precision: str
) -> Artefact:
    """Write the artefact of `stage` in the format `name` from `source`."""
    fmt, model = formats.get(name), models.get(config.model)
    folder = folder_of(config, stage)
    with making(folder) as (temporary, facts):
        started = time.monotonic()
        try:
            fmt.make(
                source,
                temporary / fmt.FILE,
                precision=precision,
                inputs=example_inputs(config, dataset),
                outputs=tuple(tensor.name for tensor in model.outputs(config)),
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


def export(config: Config, prepared: Prepared) -> Artefact:
    """Export the trained network to `config.export_format` in `config.export_precision`."""
    network = models.get(config.model).build(config, prepared.checkpoint)
    return _make(
        config, "export", network, prepared.dataset, config.export_format, config.export_precision
    )


def convert(config: Config) -> Artefact:
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


def physical_cores() -> int:
    """Count the cores this process may use; hyper-threads do not speed dense arithmetic up."""
    import psutil

    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def threads(config: Config, scenario: str) -> int:
    """Threads of one instance in `scenario`: as configured, else the cores shared out evenly."""
    count: int = getattr(config.instances, scenario)
    return config.threads or max(1, physical_cores() // count)


def deploy(config: Config) -> Artefact:
    """Write the model repository of the experiment."""
    from helpers.triton.repository import SCENARIOS, write_repository

    converted = require(config, "convert")
    model = models.get(config.model)
    per_scenario = {scenario: threads(config, scenario) for scenario in SCENARIOS}
    with making(folder_of(config, "deploy")) as (temporary, facts):
        write_repository(
            temporary, config, converted, model.inputs(config), model.outputs(config), per_scenario
        )
        facts.update(model=config.model, threads=per_scenario)
    return require(config, "deploy")


def fingerprint(path: Path) -> str:
    """Tell whether a user's file or folder changed without reading it: names, sizes and times."""
    if not path.exists():
        raise DataError(f"{shown(path)}: there is no such file or folder")
    entries = sorted(path.rglob("*")) if path.is_dir() else [path]
    return digest(
        [(str(e), e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file()]
    )


def inputs(config: Config, stage: str) -> dict[str, str]:
    """Identify what `stage` works on: hashes of artefacts, names of what the recipe makes,
    fingerprints of users' files.
    """
    data = dataset_folder(config)
    found = {"dataset": data.name if is_generated(config) else fingerprint(data)}
    if stage == "export":
        checkpoint = checkpoint_file(config)
        name = checkpoint.parent.name if config.checkpoint == "fitted" else fingerprint(checkpoint)
        return found | {"checkpoint": name}
    before = {
        "convert": "export",
        "deploy": "convert",
        "perf_offline": "deploy",
        "perf_online": "deploy",
    }[stage]
    artefact = find(folder_of(config, before))
    return found | {before: artefact.sha256 if artefact else "missing"}
