"""Wide & Deep for outbrain's ads: what is its own, behind the names of `helpers.models.Model`."""

from pathlib import Path
from typing import Any

from helpers.models import Dataset, Tensor
from helpers.models.widedeep.features import HOTNESS, MULTI_HOT, NAMES, NUMERIC

TITLE = "Wide & Deep"
VARIANTS = ()
FRAMEWORK = "tensorflow"
METRICS = {"map12": "higher"}
# 3 to 4 times the largest differences measured over 64 rows of both generated sets on a CPU with
# AVX-512 and bf16: OpenVINO at fp32 1.6e-6 and 5.3e-7 (ONNX Runtime less, SavedModel none), at bf16
# 1.6e-2 and 3.9e-3; fp16, as NumPy rounds every weight and layer, 3.0e-3 and 9.1e-4
BOUNDS = {"fp32": (6e-6, 2e-6), "bf16": (0.06, 0.015), "fp16": (0.01, 3.5e-3)}
GENERATED = ("generated", "generated-small")
RECIPE = ("features", "network", "generate", "fit", "checkpoint", "_keras/checkpoint")
BATCH = 4096


def inputs(config: Any) -> tuple[Tensor, ...]:
    """Name the 13 numbers, the 13 ids and the 3 lists of ids of an ad in its display.

    NVIDIA exports fp32 whatever the precision, and TensorRT makes it fp16 inside.
    """
    return tuple(
        Tensor(
            name,
            "float32" if name in NUMERIC else "int32",
            (HOTNESS if name in MULTI_HOT else 1,),
        )
        for name in NAMES
    )


def outputs(config: Any) -> tuple[Tensor, ...]:
    """Name the probability of a click."""
    return (Tensor("wide_deep_model", "float32", (1,)),)


def prepare_dataset(config: Any, folder: Path) -> None:
    """Generate the set `config.dataset` in `folder`; raise DataError if there is no such set."""
    from helpers.models.widedeep.generate import write_displays

    write_displays(config.dataset, folder)


def open_dataset(config: Any, folder: Path) -> Dataset:
    """Open a folder of Parquet files, made here or by NVIDIA's preprocessing; raise DataError for
    another layout.
    """
    from helpers.models.widedeep.data import Displays

    return Displays(folder, outputs(config)[0].name)


def prepare_checkpoint(config: Any, dataset: Path, path: Path) -> None:
    """Fit a checkpoint to the training part of the set `config.dataset`, lying in `dataset`."""
    from helpers.models.widedeep.fit import fit

    fit(config.dataset, dataset, path)


def build(config: Any, checkpoint: Path) -> Any:
    """Build the Keras model.

    Raises CheckpointError unless every tensor of `checkpoint` has its place.
    """
    from helpers.models.widedeep.checkpoint import load
    from helpers.models.widedeep.network import wide_and_deep

    network = wide_and_deep()
    load(checkpoint, network)
    return network
