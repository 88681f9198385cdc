"""Wide & Deep for outbrain's ads: the probability that an ad is clicked."""

from pathlib import Path
from typing import ClassVar

from helpers.models import Config, Dataset, Model, Network, RawParts, Split, Tensor
from helpers.models._rounding import tolerances_for
from helpers.models.widedeep.features import HOTNESS, MULTI_HOT, NUMERIC, ONE_HOT


class WideAndDeep(Model):
    TITLE = "Wide & Deep"
    FRAMEWORK = "tensorflow"
    PACKAGES = ("polars",)
    METRICS: ClassVar = {"map12": "higher"}
    BATCH = 4096
    TOLERANCES = tolerances_for([1248, *[1024] * 5])  # inputs of the deep network's layers

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the 13 numbers, the 13 ids and the 3 lists of ids of an ad in its display.

        NVIDIA exports fp32 whatever the precision, and TensorRT makes it fp16 inside.
        """
        numbers = tuple(Tensor(name, "float32", (1,), "a number") for name in NUMERIC)
        ids = tuple(Tensor(name, "int32", (1,), "an id, a row of its tables") for name in ONE_HOT)
        meaning = "a list of ids, -1 where it is shorter"
        lists = tuple(Tensor(name, "int32", (HOTNESS,), meaning) for name in MULTI_HOT)
        return numbers + ids + lists

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the probability of a click."""
        return (Tensor("wide_deep_model", "float32", (1,), "the probability of a click"),)

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        from helpers.models.widedeep.data import Displays

        part = {"test": "valid", "train": "train"}[split]
        return Displays(folder, self.outputs(config)[0].name, part)

    def build(self, config: Config, checkpoint: Path) -> Network:
        from helpers.models.widedeep.checkpoint import load
        from helpers.models.widedeep.network import wide_and_deep

        network = wide_and_deep()
        load(checkpoint, network)
        return network

    @property
    def raw_parts(self) -> RawParts:
        from helpers.models.widedeep.raw import parts

        return parts


MODEL = WideAndDeep()
