"""The data set and the checkpoint of an experiment: where they are, and how they are prepared."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers import models, store
from helpers.config import DeployConfig, ExportConfig, StageConfig, command, releases
from helpers.errors import ArtifactError, ParameterError
from helpers.models import Arrays, Dataset


@dataclass(frozen=True)
class Place:
    """Where a data set or a checkpoint is."""

    path: Path
    made: Path | None = None  # the folder in outputs/data, if the package makes it

    @property
    def is_missing(self) -> bool:
        """Return whether the package has yet to make it."""
        return self.made is not None and store.find_artifact(self.made) is None

    @property
    def name(self) -> str:
        """Return the name of its recipe, or the fingerprint of the user's files."""
        return self.made.name if self.made else store.fingerprint(self.path)

    @property
    def sha256(self) -> str:
        """Return the hash of the artifact or user file, or the fingerprint of a user folder."""
        if self.made and (artifact := store.find_artifact(self.made)):
            return artifact.sha256
        return store.file_digest(self.path) if self.path.is_file() else store.fingerprint(self.path)


@dataclass(frozen=True)
class Prepared:
    """A data set and a checkpoint on disk, ready to use."""

    dataset: Dataset
    checkpoint: Path
    hashes: dict[str, str]  # of the two, for the record of what was measured


def recipe_folder(config: ExportConfig, kind: str) -> Path:
    """Return the folder of the "dataset", "checkpoint" or "reference" (`kind`) that is made here.

    Its name contains a hash of the fields and source files that determine its content.
    """
    value: dict[str, object] = dict(config.cache_fields("data"))
    if kind == "reference":
        value |= {
            "source": [store.known_digest(path) for path in models.sources(config.model)],
            "dataset": dataset_place(config).name,
            "checkpoint": checkpoint_place(config).name,
        }
    else:
        modules = models.GENERATING
        if not _is_generated(config):
            modules = models.PREPARING
            value["files"] = store.fingerprint(store.from_root(config.dataset))
        sources = models.recipe(config.model, modules)
        value |= {str(path.relative_to(store.ROOT)): store.known_digest(path) for path in sources}
    return store.outputs() / "data" / f"{config.model}-{kind}-{store.digest(value)[:12]}"


def _is_generated(config: ExportConfig) -> bool:
    return config.dataset in models.get(config.model).GENERATED


def dataset_place(config: ExportConfig) -> Place:
    """Return the place of the data set: generated, made from raw files, or the user's."""
    path, raw = store.from_root(config.dataset), models.raw(config.model)
    if _is_generated(config) or (raw and raw.is_raw(path)):
        folder = recipe_folder(config, "dataset")
        return Place(folder, made=folder)
    return Place(path)


def checkpoint_place(config: ExportConfig) -> Place:
    """Return the place of the checkpoint: fitted, or the user's.

    Raises `ParameterError` if one would have to be fitted to a data set that is not generated.
    """
    if config.checkpoint != "fitted":
        return Place(store.from_root(config.checkpoint))
    if not _is_generated(config):
        reason = f"a generated data set, but dataset is '{config.dataset}'"
        raise ParameterError(f"checkpoint 'fitted' needs {reason}. Set the path of a checkpoint.")
    folder = recipe_folder(config, "checkpoint")
    return Place(folder / "checkpoint", made=folder)


def prepare(config: ExportConfig) -> Prepared:
    """Open the data set and find the checkpoint; what the package makes is made once, and kept."""
    model, raw = models.get(config.model), models.raw(config.model)
    data, checkpoint = dataset_place(config), checkpoint_place(config)
    if data.made and data.is_missing:
        with store.create_artifact(data.made) as (temporary, _):
            if _is_generated(config):
                print(f"generating the data set '{config.dataset}'")
                model.prepare_dataset(config, temporary)
            elif raw:
                print(f"preparing {config.dataset}")
                raw.prepare_raw(config, store.from_root(config.dataset), temporary)
    dataset = model.open_dataset(config, data.path)
    if checkpoint.made and checkpoint.is_missing:
        print("fitting a small checkpoint to the data set")
        with store.create_artifact(checkpoint.made) as (temporary, metadata):
            started = time.monotonic()
            model.prepare_checkpoint(config, data.path, temporary / checkpoint.path.name)
            metadata["fitted_seconds"] = round(time.monotonic() - started, 1)
    hashes = {"dataset": data.sha256, "checkpoint": checkpoint.sha256}
    return Prepared(dataset, checkpoint.path, hashes)


def open_dataset(config: ExportConfig) -> Dataset:
    """Open the data set; raise `ArtifactError` if the export stage has yet to make it."""
    data = dataset_place(config)
    if data.is_missing:
        raise ArtifactError(f"{config.model} has no data set yet. Run: {command(config, 'export')}")
    return models.get(config.model).open_dataset(config, data.path)


def requests(
    config: ExportConfig, dataset: Dataset, batch_size: int, limit: int | None = None
) -> Iterator[Arrays]:
    """Return the data set's batches, each as `request` gives it."""
    return (request(config, batch) for batch in dataset.batches(batch_size, limit))


def some(config: ExportConfig, dataset: Dataset, count: int) -> Arrays:
    """Return `count` samples as a request, spread over the data set; a smaller set is repeated."""
    batch = next(requests(config, dataset, count, count))
    if len(next(iter(batch.values()))) == count:
        return batch
    return {name: array.take(range(count), axis=0, mode="wrap") for name, array in batch.items()}


def request(config: ExportConfig, batch: Arrays) -> Arrays:
    """Choose from a batch the network's inputs, in its order, contiguous, in the `served_dtype`."""
    return {
        spec.name: np.ascontiguousarray(batch[spec.name], served_dtype(config, spec.dtype))
        for spec in models.get(config.model).inputs(config)
    }


def served_dtype(config: StageConfig, dtype: str) -> str:
    """Translate the type of a tensor of the exported graph to that of the served one.

    Before 10, TensorRT had no 64-bit integers: its engines take 32-bit ones instead. Stages before
    `deploy` have no served graph.
    """
    if not isinstance(config, DeployConfig) or not config.server.is_native:
        return dtype
    if config.format == "trt" and dtype == "int64":
        return "int64" if releases.has_tensorrt_10(config.server.release) else "int32"
    return dtype
