"""The part that DLRM and DCNv2 share: all but the interaction of the features."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from helpers.models import (
    Config,
    Dataset,
    Ensemble,
    Model,
    Network,
    RawParts,
    Reference,
    Split,
    Tensor,
)
from helpers.models._criteo import checkpoint as checkpoints
from helpers.models._criteo import data, hierarchical, network
from helpers.models._criteo import ensemble as criteo_ensemble
from helpers.models._criteo.ensemble import IDS, LOGIT, NUMBERS
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL, OWN, TABLES
from helpers.models._rounding import tolerances_for


class Recommender(Model):
    """A recommender whose interaction adds up `interaction` terms and gives `width` numbers."""

    FRAMEWORK = "tensorflow"
    PACKAGES = ("sklearn",)
    METRICS: ClassVar = {"auc": "higher"}
    VARIANTS = (*TABLES, *OWN)  # which rows the tables have
    BATCH = 4096
    CALIBRATION = (8_000, 1_000)  # a sample is one row, and rare rows reach far

    @property
    def raw_parts(self) -> RawParts:
        from helpers.models._criteo import raw_parts

        return raw_parts

    ensembles: ClassVar[dict[str, Ensemble]] = {"mapped": criteo_ensemble, "hps": hierarchical}
    reference: ClassVar[Reference] = criteo_ensemble

    def __init__(self, title: str, interaction: Sequence[int], width: int) -> None:
        self.TITLE = title
        # terms of an output of each layer: of the bottom MLP, the interaction and the top MLP
        self.TOLERANCES = tolerances_for(
            [NUMERICAL, 512, 256, *interaction, width, 1024, 1024, 512, 256]
        )

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        return (
            Tensor("categorical_features", "int32", (CATEGORICAL,), IDS),
            Tensor("numerical_features", "float32", (NUMERICAL,), NUMBERS),
        )

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        return (Tensor("DENSE_OUTPUT", "float32", (1,), LOGIT),)

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        return data.SplitBinary(folder, TABLES.get(config.variant), split)

    def build(self, config: Config, checkpoint: Path) -> Network:
        """Build the dense network: a Keras model of a dict of `args_0` and `args_1`."""
        dense = checkpoints.load(config.model, config.variant, checkpoint)
        return network.flat(dense) if config.lookup == "hps" else dense
