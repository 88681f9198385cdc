"""What DLRM and DCNv2 offer alike behind the names of `helpers.models.Model`."""

from pathlib import Path
from typing import Any

from helpers.models import Dataset, Tensor
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL, OWN, TABLES

VARIANTS = (*TABLES, *OWN)  # which rows the tables have
FRAMEWORK = "tensorflow"
METRICS = {"auc": "higher"}
GENERATED = ("generated", "generated-small")
_STEMS = ("tables", "spec", "data", "generate", "network", "checkpoint", "fit")
RECIPE = tuple(f"_criteo/{stem}" for stem in _STEMS)
BATCH = 4096


def inputs(config: Any) -> tuple[Tensor, ...]:
    """Name the ids of a sample's 26 categorical features, and its 13 numbers."""
    return (
        Tensor("categorical_features", "int32", (CATEGORICAL,)),
        Tensor("numerical_features", "float32", (NUMERICAL,)),
    )


def outputs(config: Any) -> tuple[Tensor, ...]:
    """Name the logit of a click."""
    return (Tensor("DENSE_OUTPUT", "float32", (1,)),)


def prepare_dataset(config: Any, folder: Path) -> None:
    """Generate the set `config.dataset` in `folder`; raise DataError if there is no such set."""
    from helpers.models._criteo.generate import write

    write(config.dataset, config.variant, folder)


def open_dataset(config: Any, folder: Path) -> Dataset:
    """Open a split-binary folder, made here or by NVIDIA; raise DataError for another layout."""
    from helpers.models._criteo.data import SplitBinary

    return SplitBinary(folder, TABLES.get(config.variant))


def prepare_checkpoint(config: Any, dataset: Path, path: Path) -> None:
    """Fit a checkpoint to the training part of the set `config.dataset`, lying in `dataset`."""
    from helpers.models._criteo.fit import fit

    fit(config.dataset, config.model, dataset, path)


def build(config: Any, checkpoint: Path) -> Any:
    """Build the dense network: a Keras model of a dict of `args_0` and `args_1`.

    Raises CheckpointError unless every weight and every table of `checkpoint` has its place.
    """
    from helpers.models._criteo.checkpoint import load

    return load(config.model, config.variant, checkpoint)
