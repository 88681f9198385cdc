"""ResNet50 v1.5: what is its own, behind the names of `helpers.models.Model`."""

from pathlib import Path
from typing import Any

from helpers.models import Dataset, Tensor
from helpers.models.resnet50.generate import SETS, write_images

TITLE = "ResNet50 v1.5"
VARIANTS = ()
FRAMEWORK = "torch"
METRICS = {"top1": "higher", "top5": "higher"}
# 3 to 4 times the largest differences measured over 64 images on a CPU with AVX-512 and bf16:
# OpenVINO at fp32 8.7e-6 and 1.1e-6, PyTorch at bf16 4.9e-2 and 1.1e-2, at fp16 6.0e-3 and 1.3e-3
BOUNDS = {"fp32": (3e-5, 4e-6), "bf16": (0.15, 0.035), "fp16": (0.02, 0.005)}
GENERATED = tuple(SETS)
RECIPE = ("network", "textures", "generate", "fit")
BATCH = 8

IMAGES = "validation"  # the folder of the evaluation images inside a set that was made here


def inputs(config: Any) -> tuple[Tensor, ...]:
    """Name the normalised RGB image."""
    return (Tensor("INPUT__0", _dtype(config), (3, 224, 224)),)


def outputs(config: Any) -> tuple[Tensor, ...]:
    """Name the logits of ImageNet's 1000 classes."""
    return (Tensor("OUTPUT__0", _dtype(config), (1000,)),)


def prepare_dataset(config: Any, folder: Path) -> None:
    """Generate the set `config.dataset` in `folder`; raise DataError if there is no such set."""
    write_images(config.dataset, folder / IMAGES)


def open_dataset(config: Any, folder: Path) -> Dataset:
    """Open a set that was made here or a folder of images; raise DataError for another layout."""
    from helpers.models.resnet50.data import ImageFolder

    images = folder / IMAGES if (folder / IMAGES).is_dir() else folder
    return ImageFolder(images, inputs(config)[0].name, outputs(config)[0].name)


def prepare_checkpoint(config: Any, dataset: Path, path: Path) -> None:
    """Fit a checkpoint to the set `config.dataset`, from images that are not in `dataset`."""
    from helpers.models.resnet50.fit import fit

    fit(config.dataset, path)


def build(config: Any, checkpoint: Path) -> Any:
    """Build the network in evaluation mode.

    Raises CheckpointError unless every tensor of `checkpoint` has its place.
    """
    from helpers.models.resnet50.checkpoint import load
    from helpers.models.resnet50.network import ResNet50

    network = ResNet50()
    load(checkpoint, network)
    network.eval()
    return network


def _dtype(config: Any) -> str:
    return "float16" if config.export_precision == "fp16" else "float32"
