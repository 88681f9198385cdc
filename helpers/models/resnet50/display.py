"""Pictures of evaluation images as the network reads them, with its predictions."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, GREY, INK, picture, subplots
from helpers.models import Arrays, Example
from helpers.models._arrays import Answers, answers, spread
from helpers.models.resnet50.data import DEVIATION, MEAN, OUTPUTS, ImageFolder

if TYPE_CHECKING:
    from IPython import display

COLUMNS = 5  # of images
TOP = 5  # classes that are shown
READING = """\
logits = response.as_numpy("{output}")[0]
for label in logits.argsort()[:-4:-1]:  # the three largest
    print(f"{{sample['classes'][label]}}: logit {{logits[label]:.2f}}")
print("its label:", sample["label"])
"""


def show_images(dataset: ImageFolder, infer: Answers, count: int = 10) -> "display.Image":
    """Draw `count` images, spread over the whole set, after resizing and cropping. Each has its
    class, the predicted class and its probability.
    """
    places = spread(len(dataset), count)
    batch = dataset.take(places)
    (images,), shares = batch.values(), _shares(infer, batch, places)
    title = "Images with their classes and predictions"
    figure, drawn = subplots(title, len(places), tall=1.75, across=COLUMNS)
    captions = []
    for axes, index, image, share in zip(drawn, places.tolist(), images, shares, strict=True):
        right, best = dataset.class_of(index), int(share.argmax())
        named, mark = dataset.name_of(best), "✓" if dataset.name_of(best) == right else "✗"
        axes.imshow(_pixels(image))
        axes.set(xticks=[], yticks=[])
        axes.set_title(right, loc="left", fontsize=9)
        colour = INK if named == right else COLOURS[4]
        axes.set_xlabel(f"{mark} {named} {share[best]:.0%}", fontsize=9, color=colour, loc="left")
        captions.append(f"{right}: {named} {share[best]:.0%}")
    text = f"{len(places)} images, by class and likeliest class"
    return picture(figure, f"{text}: {'; '.join(captions)}.")


def _shares(infer: Answers, batch: Arrays, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of each class: softmax of the logits, [images, classes]."""
    (logits,) = answers(infer, batch, places).values()
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


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
    chosen = spread(len(dataset), count)
    batch, places = dataset.take(chosen), chosen.tolist()
    (images,), shares = batch.values(), _shares(infer, batch, chosen)
    figure, axes = subplots("Images with their likeliest classes", 2 * len(places), tall=1.7)
    captions = []
    for shown, bars, index, image, share in zip(
        axes[::2], axes[1::2], places, images, shares, strict=True
    ):
        right, best = dataset.class_of(index), np.argsort(-share, kind="stable")[:TOP]
        names = [dataset.name_of(int(label)) for label in best]
        shown.imshow(_pixels(image))
        shown.set_axis_off()
        shown.set_title(right, loc="left", fontsize=9)
        colours = [COLOURS[2] if name == right else GREY for name in names]
        bars.barh(range(len(names)), share[best], color=colours)
        bars.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1), xlabel="probability")
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        captions.append(f"{right}: {names[0]} {share[best[0]]:.0%}")
    text = "Four images" if len(places) == 4 else f"{len(places)} images"
    return picture(figure, f"{text}, by class and likeliest class: {'; '.join(captions)}.")


def example(dataset: ImageFolder, most: int) -> Example:
    """Choose the first image that `show_predictions` draws."""
    classes = np.array([dataset.name_of(label) for label in range(OUTPUTS)])
    beside = {"classes": classes, "label": np.array(dataset.class_of(0))}
    reading = READING.format(output=dataset.output)
    return Example(dataset.take(np.array([0])), beside, reading)
