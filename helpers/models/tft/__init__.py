"""The Temporal Fusion Transformer: what is its own, behind the names of `helpers.models.Model`."""

from pathlib import Path
from typing import Any

from helpers.models import Dataset, Tensor
from helpers.models.tft.variants import HORIZON, LENGTH, QUANTILES
from helpers.models.tft.variants import VARIANTS as _VARIANTS

TITLE = "Temporal Fusion Transformer"
VARIANTS = tuple(_VARIANTS)
FRAMEWORK = "torch"
METRICS = {f"p{round(100 * q)}": "lower" for q in QUANTILES}  # q-risks
# 3 to 4 times the largest differences measured over 64 windows on a CPU with AVX-512 and bf16, both
# variants: ONNX Runtime and OpenVINO at fp32 3.4e-6 and 2.1e-7 (TorchScript none), TorchScript at
# bf16 4.2e-2 and 2.8e-3 (OpenVINO 2.9e-2 and 2.4e-3), PyTorch at fp16 5.9e-3 and 5.7e-4
BOUNDS = {"fp32": (1e-5, 8e-7), "bf16": (0.15, 0.01), "fp16": (0.02, 0.002)}
GENERATED = ("generated", "generated-small")
RECIPE = ("variants", "network", "prepare", "generate", "fit")
BATCH = 64


def inputs(config: Any) -> tuple[Tensor, ...]:
    """Name the three inputs that the network reads, of the eight of NVIDIA's deployment."""
    return (
        Tensor("s_cat__0", "int64", (LENGTH, 1)),
        Tensor("k_cont__3", _dtype(config), (LENGTH, 3)),
        Tensor("target__6", _dtype(config), (LENGTH, 1)),
    )


def outputs(config: Any) -> tuple[Tensor, ...]:
    """Name the normalised P10, P50 and P90 of the next day."""
    return (Tensor("target__0", _dtype(config), (HORIZON, len(QUANTILES))),)


def prepare_dataset(config: Any, folder: Path) -> None:
    """Generate the set `config.dataset` in `folder`; raise DataError if there is no such set."""
    from helpers.models.tft.generate import write_series

    write_series(config.dataset, config.variant, folder)


def open_dataset(config: Any, folder: Path) -> Dataset:
    """Open a processed folder, made here or by NVIDIA; raise DataError for another layout."""
    from helpers.models.tft.data import Windows

    names = tuple(tensor.name for tensor in (*inputs(config), *outputs(config)))
    return Windows(folder, _VARIANTS[config.variant], names)


def prepare_checkpoint(config: Any, dataset: Path, path: Path) -> None:
    """Fit a checkpoint to the training part of the set `config.dataset`, lying in `dataset`."""
    from helpers.models.tft.fit import fit

    fit(config.dataset, _VARIANTS[config.variant], dataset, path)


def build(config: Any, checkpoint: Path) -> Any:
    """Build the network in evaluation mode.

    Raises CheckpointError unless every tensor of `checkpoint` has its place.
    """
    from helpers.models.tft.checkpoint import load
    from helpers.models.tft.network import TemporalFusionTransformer

    variant = _VARIANTS[config.variant]
    network = TemporalFusionTransformer(variant.cardinality, variant.dropout)
    load(checkpoint, network)
    network.eval()
    return network


def _dtype(config: Any) -> str:
    return "float16" if config.export_precision == "fp16" else "float32"
