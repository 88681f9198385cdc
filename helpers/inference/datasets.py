"""Which data set and checkpoint an experiment works on, and how they are made ready."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers import models
from helpers.config import DeployConfig, ExportConfig, StageConfig, command, releases
from helpers.errors import ArtefactError, ParameterError
from helpers.models import Arrays, Dataset
from helpers.store import (
    Artefact,
    digest,
    file_digest,
    find,
    fingerprint,
    from_root,
    making,
    outputs,
)

EXAMPLE_BATCH = 2  # samples that an exporter sees: one alone would be taken for a constant


@dataclass(frozen=True)
class Prepared:
    """A data set and a checkpoint on disk, ready to use."""

    dataset: Dataset
    checkpoint: Path
    hashes: dict[str, str]  # of what the results rest on


def recipe_key(config: ExportConfig, kind: str) -> str:
    """Name what the model's recipe makes: `kind` is "dataset", "checkpoint" or "reference"; new
    recipe, new name.
    """
    value: dict[str, Any] = config.cache_fields("data")
    if kind == "reference":
        value |= {
            "source": [file_digest(path) for path in models.sources(config.model)],
            "dataset": dataset_name(config),
            "checkpoint": checkpoint_name(config),
        }
    else:
        generated = is_generated(config)
        sources = [models.source(config.model, m) for m in models.get(config.model).RECIPE]
        sources += [] if generated else models.raw_sources(config.model)
        value |= {path.name: file_digest(path) for path in sources}
        if not generated:
            value["files"] = fingerprint(from_root(config.dataset))
    return f"{config.model}-{kind}-{digest(value)[:12]}"


def is_generated(config: ExportConfig) -> bool:
    """Whether the experiment's data set is one that the package generates."""
    return config.dataset in models.get(config.model).GENERATED


def is_made(config: ExportConfig) -> bool:
    """Whether the package makes the data set: generates it, or prepares it from raw files."""
    raw = models.raw(config.model)
    return is_generated(config) or bool(raw and raw.holds_raw(from_root(config.dataset)))


def dataset_folder(config: ExportConfig) -> Path:
    """Where the data set lies or will lie."""
    return (
        outputs() / "data" / recipe_key(config, "dataset")
        if is_made(config)
        else from_root(config.dataset)
    )


def checkpoint_file(config: ExportConfig) -> Path:
    """Where the checkpoint lies or will lie."""
    if config.checkpoint != "fitted":
        return from_root(config.checkpoint)
    if not is_generated(config):
        raise ParameterError(
            f"checkpoint 'fitted' needs a generated data set, and dataset is '{config.dataset}': "
            "give the path of a checkpoint"
        )
    return outputs() / "data" / recipe_key(config, "checkpoint") / "checkpoint"


def prepare(config: ExportConfig) -> Prepared:
    """Make the data set and the checkpoint ready; what was generated or fitted before is taken from
    outputs/data.
    """
    model = models.get(config.model)
    folder, checkpoint = dataset_folder(config), checkpoint_file(config)
    if is_made(config) and find(folder) is None:
        with making(folder) as (temporary, _):
            if is_generated(config):
                print(f"generating the data set '{config.dataset}'")
                model.prepare_dataset(config, temporary)
            elif raw := models.raw(config.model):
                print(f"preparing {config.dataset}")
                raw.prepare_raw(config, from_root(config.dataset), temporary)
    dataset = model.open_dataset(config, folder)
    if config.checkpoint == "fitted" and find(checkpoint.parent) is None:
        print("fitting a small checkpoint to it")
        with making(checkpoint.parent) as (temporary, facts):
            started = time.monotonic()
            model.prepare_checkpoint(config, folder, temporary / checkpoint.name)
            facts["fitted_seconds"] = round(time.monotonic() - started, 1)
    fitted = find(checkpoint.parent) if config.checkpoint == "fitted" else None
    hashes = {
        "dataset": _content(folder, find(folder) if is_made(config) else None),
        "checkpoint": _content(checkpoint, fitted),
    }
    return Prepared(dataset, checkpoint, hashes)


def _content(path: Path, made: Artefact | None) -> str:
    """Hash what was made or a user's file; of a user's folder, give the fingerprint."""
    if made:
        return made.sha256
    return file_digest(path) if path.is_file() else fingerprint(path)


def open_dataset(config: ExportConfig) -> Dataset:
    """Open the data set that the export stage made ready."""
    if is_made(config) and find(dataset_folder(config)) is None:
        raise ArtefactError(
            f"the data set of {config.model} is not there yet: run {command(config, 'export')}"
        )
    return models.get(config.model).open_dataset(config, dataset_folder(config))


def requests(
    config: ExportConfig, dataset: Dataset, batch_size: int, limit: int | None = None
) -> Iterator[Arrays]:
    """Yield the data set's batches as the exported network takes them: its inputs only, in its
    order, in its types.
    """
    for batch in dataset.batches(batch_size, limit):
        yield request(config, batch)


def request(config: ExportConfig, batch: Arrays) -> Arrays:
    """Give a batch of the data set as the exported network takes it, or what it is served as."""
    return {
        tensor.name: np.ascontiguousarray(
            batch[tensor.name], dtype=served_dtype(config, tensor.dtype)
        )
        for tensor in models.get(config.model).inputs(config)
    }


def example_inputs(config: ExportConfig, dataset: Dataset) -> Arrays:
    """Take a small real batch, for an exporter to trace or to infer shapes from."""
    return next(requests(config, dataset, EXAMPLE_BATCH, EXAMPLE_BATCH))


def dataset_name(config: ExportConfig) -> str:
    """Identify the data set: by the recipe that makes it, or by the user's files."""
    folder = dataset_folder(config)
    return folder.name if is_made(config) else fingerprint(folder)


def checkpoint_name(config: ExportConfig) -> str:
    """Identify the checkpoint likewise."""
    path = checkpoint_file(config)
    return path.parent.name if config.checkpoint == "fitted" else fingerprint(path)


def served_dtype(config: StageConfig, dtype: str) -> str:
    """Give the type that the served graph has for a tensor of the exported one.

    TensorRT had no 64-bit integers before 10: its engines take 32-bit ones instead. Only a stage
    that talks to the server knows what serves.
    """
    if not isinstance(config, DeployConfig) or config.server.kind == "embedded":
        return dtype
    if config.format == "trt" and dtype == "int64":
        return "int64" if releases.has_tensorrt_10(config.server.release) else "int32"
    return dtype
