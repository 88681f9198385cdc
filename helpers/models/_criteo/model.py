"""What DLRM and DCNv2 have in common: all but their interaction of the features."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from helpers.models import (
    Arrays,
    Config,
    Dataset,
    Ensemble,
    Example,
    Model,
    Network,
    Raw,
    RawParts,
    Reference,
    Tensor,
)
from helpers.models._arrays import draw
from helpers.models._criteo import checkpoint as checkpoints
from helpers.models._criteo import data, hierarchical, network
from helpers.models._criteo import ensemble as criteo_ensemble
from helpers.models._criteo import raw as criteo_raw
from helpers.models._criteo.ensemble import IDS, LOGIT, NUMBERS
from helpers.models._criteo.synthetic import fit, generate
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL, OWN, TABLES
from helpers.models._rounding import bounds


class Recommender(Model):
    """The recommender `title`, whose interaction adds up `interaction` terms, and gives `width`
    numbers.
    """

    FRAMEWORK = "tensorflow"
    PACKAGES = ("sklearn",)
    METRICS: ClassVar = {"auc": "higher"}
    VARIANTS = (*TABLES, *OWN)  # which rows the tables have
    RECIPE = (
        *(f"_criteo/{module}" for module in ("tables", "spec", "data", "network", "checkpoint")),
        *("_criteo/lookup", "_criteo/synthetic/generate", "_criteo/synthetic/fit"),
        "_keras/checkpoint",
    )
    BATCH = 4096
    CALIBRATION = (8_000, 1_000)  # a sample is one row, and rare rows reach far
    raw: ClassVar[Raw] = criteo_raw

    @property
    def raw_parts(self) -> RawParts:
        from helpers.models._criteo import raw_parts

        return raw_parts

    ensembles: ClassVar[dict[str, Ensemble]] = {"mapped": criteo_ensemble, "hps": hierarchical}
    reference: ClassVar[Reference] = criteo_ensemble

    def __init__(self, title: str, interaction: Sequence[int], width: int) -> None:
        self.TITLE = title
        # terms of an output of each layer: of the bottom MLP, the interaction and the top MLP
        self.BOUNDS = bounds([NUMERICAL, 512, 256, *interaction, width, 1024, 1024, 512, 256])

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        return (
            Tensor("categorical_features", "int32", (CATEGORICAL,), IDS),
            Tensor("numerical_features", "float32", (NUMERICAL,), NUMBERS),
        )

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("DENSE_OUTPUT", "float32", (1,), LOGIT),)

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        generate.write(config.dataset, config.variant, folder)

    def open_dataset(self, config: Config, folder: Path) -> Dataset:
        return data.SplitBinary(folder, TABLES.get(config.variant))

    def training_samples(self, config: Config, folder: Path, count: int, seed: int) -> Arrays:
        """Draw samples of the part `train`."""
        samples = data.SplitBinary(folder, TABLES.get(config.variant), "train")
        return samples.take(draw(len(samples), count, seed)).inputs

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        fit.fit(config.dataset, config.model, dataset, path)

    def example(self, config: Config, dataset: Dataset, most: int) -> Example:
        from helpers.models._criteo.display import example

        assert isinstance(dataset, data.SplitBinary)
        return example(dataset, most)

    def build(self, config: Config, checkpoint: Path) -> Network:
        """Build the dense network: a Keras model of a dict of `args_0` and `args_1`."""
        found = checkpoints.load(config.model, config.variant, checkpoint)
        return network.flat(found) if config.lookup == "hps" else found
