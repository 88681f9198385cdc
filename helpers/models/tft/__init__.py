"""The Temporal Fusion Transformer, which forecasts quantiles of a time series."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from helpers.models import Config, Dataset, Model, Split, Tensor, float_type
from helpers.models._rounding import tolerances_for
from helpers.models.tft.variants import HORIZON, LENGTH, QUANTILES, VARIANTS

if TYPE_CHECKING:
    from torch import nn

_WIDTH = 128
# Terms of an output of the embedding and the selection of variables, whose first layer takes four.
# Then of the LSTM at each hour, gate, enrichment, attention (scores, gate), and three layers.
_SELECTION, _LSTM = [2, 4 * _WIDTH, _WIDTH, _WIDTH, 4], [2 * _WIDTH] * LENGTH
_ATTENTION = [*[_WIDTH] * 6, _WIDTH // 4, LENGTH, _WIDTH // 4, *[_WIDTH] * 6]


class TFT(Model):
    TITLE = "Temporal Fusion Transformer"
    FRAMEWORK = "torch"
    PACKAGES = ("polars", "sklearn")
    METRICS: ClassVar = {f"p{round(100 * q)}": "lower" for q in QUANTILES}  # q-risks
    VARIANTS = tuple(VARIANTS)
    BATCH = 64
    # int8 leaves the LSTM in floating point
    TOLERANCES = tolerances_for(_SELECTION + _LSTM + _ATTENTION) | {
        "int8": tolerances_for(_SELECTION + _ATTENTION)["int8"]
    }

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the three inputs that the network reads, of the eight of NVIDIA's deployment."""
        dtype = float_type(config)
        return (
            Tensor("s_cat__0", "int64", (LENGTH, 1), "index of the series, at each hour"),
            Tensor("k_cont__3", dtype, (LENGTH, 3), "known inputs of each hour, scaled"),
            Tensor("target__6", dtype, (LENGTH, 1), "the series, scaled; its last day is unused"),
        )

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the normalised P10, P50 and P90 of the next day."""
        shape, meaning = (HORIZON, len(QUANTILES)), "P10, P50 and P90 of each hour, scaled"
        return (Tensor("target__0", float_type(config), shape, meaning),)

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        from helpers.models.tft.data import Windows

        names = tuple(tensor.name for tensor in (*self.inputs(config), *self.outputs(config)))
        return Windows(folder, VARIANTS[config.variant], names, split)

    def build(self, config: Config, checkpoint: Path) -> "nn.Module":
        from helpers.models.tft.checkpoint import load
        from helpers.models.tft.network import TemporalFusionTransformer

        variant = VARIANTS[config.variant]
        network = TemporalFusionTransformer(variant.cardinality, variant.dropout)
        load(checkpoint, network)
        return network.eval()


MODEL = TFT()
