"""Showing images of an evaluation set as the network sees them, and what it says of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from helpers.display import COLOURS, GREY, picture, subplots
from helpers.models import Arrays, Dataset, Example
from helpers.models._arrays import spread
from helpers.models.resnet50.data import DEVIATION, MEAN, OUTPUTS, ImageFolder

if TYPE_CHECKING:
    from IPython import display

SIDE = 112
GAP = 4
TOP = 5  # classes that are shown
READING = """\
logits = answer.as_numpy("{output}")[0]
for label in logits.argsort()[:-4:-1]:  # the three largest
    print(f"{{sample['classes'][label]}}: logit {{logits[label]:.2f}}")
print("its label:", sample["label"])
"""


def show_images(dataset: Dataset, count: int = 10) -> Image.Image:
    """Lay `count` images, spread over the whole set, side by side, after resizing and cropping."""
    (batch,) = dataset.batches(count, limit=count)
    (images,) = batch.values()
    sheet = Image.new("RGB", (len(images) * (SIDE + GAP) - GAP, SIDE), "white")
    for place, image in enumerate(images):
        shown = Image.fromarray(_pixels(image)).resize((SIDE, SIDE))
        sheet.paste(shown, (place * (SIDE + GAP), 0))
    return sheet


def _pixels(image: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Turn a normalised image [3, height, width] back into uint8 [height, width, 3]."""
    pixels = (image.transpose(1, 2, 0) * DEVIATION + MEAN).clip(0, 1) * 255
    return np.asarray(pixels.round(), dtype=np.uint8)


def show_predictions(
    dataset: ImageFolder, infer: Callable[[Arrays], Arrays], count: int = 4
) -> "display.Image":
    """Draw `count` images, spread over the set, and the five classes that the network finds most
    probable (softmax of its logits).

    `infer` maps a batch as the data set gives it to the network's output: a session's `run`, or a
    client of a server.
    """
    places = spread(len(dataset), count).tolist()
    batch = dataset.take(np.array(places))
    (images,), (logits,) = batch.values(), infer(batch).values()
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    figure, axes = subplots("Images, and what the model says", 2 * len(places), tall=1.7)
    said = []
    for shown, bars, place, image, share in zip(
        axes[::2], axes[1::2], places, images, shares, strict=True
    ):
        right, best = dataset.class_of(place), np.argsort(-share, kind="stable")[:TOP]
        names = [dataset.name_of(int(label)) for label in best]
        shown.imshow(_pixels(image))
        shown.set_axis_off()
        shown.set_title(right, loc="left", fontsize=9)
        colours = [COLOURS[2] if name == right else GREY for name in names]
        bars.barh(range(len(names)), share[best], color=colours)
        bars.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1), xlabel="probability")
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        said.append(f"{right}: {names[0]} {share[best[0]]:.0%}")
    text = "Four images" if len(places) == 4 else f"{len(places)} images"
    return picture(
        figure, f"{text}, by class and what the model finds likeliest: {'; '.join(said)}."
    )


def example(dataset: ImageFolder, output: str) -> Example:
    """Choose the first image that `show_predictions` draws; `output` has its logits."""
    classes = np.array([dataset.name_of(label) for label in range(OUTPUTS)])
    beside = {"classes": classes, "label": np.array(dataset.class_of(0))}
    return Example(dataset.take(np.array([0])), beside, READING.format(output=output))
