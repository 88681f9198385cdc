"""ResNet50 v1.5, an image classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from helpers.models import Config, Dataset, Model, SampleSize, Split, Tensor, float_type
from helpers.models._rounding import tolerances_for

if TYPE_CHECKING:
    from torch import nn

RESIZED = 256  # pixels of an image's shorter side, and so of the largest crop
CROPPED = 224  # pixels of a crop's sides, unless an experiment has a crop_size
SMALLEST = 32  # pixels of a crop's sides: the network halves them five times
IMAGES = "validation"  # the folder of the evaluation images inside a set that was made here
TRAINING = "train"  # and of the training images
# terms of an output of: the first convolution, the three of each block, the last layer
_BLOCKS = [width for w, count in ((64, 3), (128, 4), (256, 6), (512, 3)) for width in [w] * count]
_SUMS = [7 * 7 * 3, *(n for w in _BLOCKS for n in (4 * w, 3 * 3 * w, w)), 2048]


class ResNet50(Model):
    TITLE = "ResNet50 v1.5"
    FRAMEWORK = "torch"
    PACKAGES = ("PIL",)
    METRICS: ClassVar = {"top1": "higher", "top5": "higher"}
    SAMPLE_SIZES: ClassVar = {"crop_size": SampleSize(SMALLEST, RESIZED, CROPPED, "pixels a side")}
    BATCH = 8
    TOLERANCES = tolerances_for(_SUMS)

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the normalised RGB image."""
        meaning, side = "red, green and blue of an image, normalised", config.crop_size or CROPPED
        return (Tensor("INPUT__0", float_type(config), (3, side, side), meaning),)

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the logits of ImageNet's 1000 classes."""
        meaning = "a logit for each class"
        return (Tensor("OUTPUT__0", float_type(config), (1000,), meaning),)

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        from helpers.models.resnet50.data import ImageFolder

        (image,), (logits,) = self.inputs(config), self.outputs(config)
        images = folder / (TRAINING if split == "train" else IMAGES)
        if split == "test" and not images.is_dir():
            images = folder  # the user's, which has class folders alone
        return ImageFolder(images, image.name, logits.name, image.shape[-1])

    def build(self, config: Config, checkpoint: Path) -> "nn.Module":
        from helpers.models.resnet50.network import ResNet50, load

        network = ResNet50()
        load(checkpoint, network)
        return network.eval()


MODEL = ResNet50()
