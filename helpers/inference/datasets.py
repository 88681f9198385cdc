"""The data set and the checkpoint of an experiment: where they are, and how they are prepared."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers import models
from helpers.config import DeployConfig, ExportConfig, StageConfig, command, releases
from helpers.errors import ArtefactError, ParameterError
from helpers.models import Arrays, Dataset
from helpers.store import (
    ROOT,
    Artefact,
    digest,
    file_digest,
    find_artefact,
    fingerprint,
    from_root,
    making,
    outputs,
)

EXAMPLE_BATCH = 2  # samples for an exporter, which would take a batch of one for a constant


@dataclass(frozen=True)
class Prepared:
    """A data set and a checkpoint on disk, ready to use."""

    dataset: Dataset
    checkpoint: Path
    hashes: dict[str, str]  # of the two, for the record of what was measured


def recipe_key(config: ExportConfig, kind: str) -> str:
    """Name the folder of a "dataset", "checkpoint" or "reference" (`kind`) that the package makes.

    The name has a hash of the fields and source files that decide its content, so that a change of
    them leads to a new folder.
    """
    value: dict[str, object] = dict(config.cache_fields("data"))
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
        value |= {str(path.relative_to(ROOT)): file_digest(path) for path in sources}
        if not generated:
            value["files"] = fingerprint(from_root(config.dataset))
    return f"{config.model}-{kind}-{digest(value)[:12]}"


def is_generated(config: ExportConfig) -> bool:
    """Whether the experiment's data set is one that the package generates."""
    return config.dataset in models.get(config.model).GENERATED


def is_made(config: ExportConfig) -> bool:
    """Whether the package makes the data set, by generating it or from raw files."""
    raw = models.raw(config.model)
    return is_generated(config) or bool(raw and raw.holds_raw(from_root(config.dataset)))


def dataset_folder(config: ExportConfig) -> Path:
    """Give the path of the data set, which may have to be made first."""
    if is_made(config):
        return outputs() / "data" / recipe_key(config, "dataset")
    return from_root(config.dataset)


def checkpoint_file(config: ExportConfig) -> Path:
    """Give the path of the checkpoint, which may have to be fitted first.

    Raises `ParameterError` if one would have to be fitted to a data set that is not generated.
    """
    if config.checkpoint != "fitted":
        return from_root(config.checkpoint)
    if not is_generated(config):
        raise ParameterError(
            f"checkpoint 'fitted' needs a generated data set, and dataset is '{config.dataset}': "
            "give the path of a checkpoint"
        )
    return outputs() / "data" / recipe_key(config, "checkpoint") / "checkpoint"


def prepare(config: ExportConfig) -> Prepared:
    """Open the data set and find the checkpoint; what the package makes is made once and kept in
    outputs/data.
    """
    model = models.get(config.model)
    folder, checkpoint = dataset_folder(config), checkpoint_file(config)
    if is_made(config) and find_artefact(folder) is None:
        with making(folder) as (temporary, _):
            if is_generated(config):
                print(f"generating the data set '{config.dataset}'")
                model.prepare_dataset(config, temporary)
            elif raw := models.raw(config.model):
                print(f"preparing {config.dataset}")
                raw.prepare_raw(config, from_root(config.dataset), temporary)
    dataset = model.open_dataset(config, folder)
    if config.checkpoint == "fitted" and find_artefact(checkpoint.parent) is None:
        print("fitting a small checkpoint to it")
        with making(checkpoint.parent) as (temporary, facts):
            started = time.monotonic()
            model.prepare_checkpoint(config, folder, temporary / checkpoint.name)
            facts["fitted_seconds"] = round(time.monotonic() - started, 1)
    fitted = find_artefact(checkpoint.parent) if config.checkpoint == "fitted" else None
    hashes = {
        "dataset": _content(folder, find_artefact(folder) if is_made(config) else None),
        "checkpoint": _content(checkpoint, fitted),
    }
    return Prepared(dataset, checkpoint, hashes)


def _content(path: Path, made: Artefact | None) -> str:
    """Hash what was made or a user's file; of a user's folder, give the fingerprint."""
    if made:
        return made.sha256
    return file_digest(path) if path.is_file() else fingerprint(path)


def open_dataset(config: ExportConfig) -> Dataset:
    """Open the data set; raise `ArtefactError` if the export stage has yet to make it."""
    if is_made(config) and find_artefact(dataset_folder(config)) is None:
        raise ArtefactError(f"{config.model} has no data set yet: run {command(config, 'export')}")
    return models.get(config.model).open_dataset(config, dataset_folder(config))


def requests(
    config: ExportConfig, dataset: Dataset, batch_size: int, limit: int | None = None
) -> Iterator[Arrays]:
    """Yield the data set's batches as `request` gives them."""
    for batch in dataset.batches(batch_size, limit):
        yield request(config, batch)


def request(config: ExportConfig, batch: Arrays) -> Arrays:
    """Choose from a batch what the network takes: its inputs in its order, contiguous, in the types
    of the exported graph or, for a stage that has a server, of the served one.
    """
    return {
        tensor.name: np.ascontiguousarray(
            batch[tensor.name], dtype=served_dtype(config, tensor.dtype)
        )
        for tensor in models.get(config.model).inputs(config)
    }


def example_inputs(config: ExportConfig, dataset: Dataset) -> Arrays:
    """Take a small real batch, which an exporter traces or infers shapes from."""
    return next(requests(config, dataset, EXAMPLE_BATCH, EXAMPLE_BATCH))


def dataset_name(config: ExportConfig) -> str:
    """Identify the data set by its `recipe_key`, or by the user's files."""
    folder = dataset_folder(config)
    return folder.name if is_made(config) else fingerprint(folder)


def checkpoint_name(config: ExportConfig) -> str:
    """Identify the checkpoint by its `recipe_key`, or by the user's files."""
    path = checkpoint_file(config)
    return path.parent.name if config.checkpoint == "fitted" else fingerprint(path)


def served_dtype(config: StageConfig, dtype: str) -> str:
    """Translate the type of a tensor of the exported graph to that of the served one.

    Before 10, TensorRT had no 64-bit integers: its engines take 32-bit ones instead. Stages before
    `deploy` have no served graph.
    """
    if not isinstance(config, DeployConfig) or config.server.kind == "embedded":
        return dtype
    if config.format == "trt" and dtype == "int64":
        return "int64" if releases.has_tensorrt_10(config.server.release) else "int32"
    return dtype
