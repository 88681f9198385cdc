"""Pictures of evaluation images as the network reads them, with its predictions."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.display import COLOURS, GREY, INK, picture, subplots
from helpers.models import Example
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
    """Draw `count` images, spread over the set, each with its class and the likeliest one."""
    shown = _predicted(dataset, infer, count)
    title = "Images with their classes and predictions"
    figure, drawn = subplots(title, len(shown), tall=1.75, across=COLUMNS)
    captions = []
    for axes, (pixels, right, share) in zip(drawn, shown, strict=True):
        named = dataset.name_of(int(share.argmax()))
        prediction = f"{named} {share.max():.0%}"
        mark, colour = ("✓", INK) if named == right else ("✗", COLOURS[4])
        axes.imshow(pixels)
        axes.set(xticks=[], yticks=[])
        axes.set_title(right, loc="left", fontsize=9)
        axes.set_xlabel(f"{mark} {prediction}", fontsize=9, color=colour, loc="left")
        captions.append(f"{right}: {prediction}")
    text = f"{len(shown)} images, by class and likeliest class"
    return picture(figure, f"{text}: {'; '.join(captions)}.")


def _predicted(
    dataset: ImageFolder, infer: Answers, count: int
) -> list[tuple[NDArray[np.uint8], str, NDArray[np.float64]]]:
    """Return `count` images, uint8 [height, width, 3], each with its class and the probability of
    every class: softmax of the logits, [classes].
    """
    places = spread(len(dataset), count)
    batch = dataset.take(places)
    (images,), (logits,) = batch.values(), answers(infer, batch, places).values()
    pixels = (images.transpose(0, 2, 3, 1) * DEVIATION + MEAN).clip(0, 1) * 255
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    classes = map(dataset.class_of, places.tolist())
    return list(zip(pixels.round().astype(np.uint8), classes, shares, strict=True))


def show_predictions(dataset: ImageFolder, infer: Answers, count: int = 4) -> "display.Image":
    """Draw `count` images, spread over the set, and their five likeliest classes."""
    predicted = _predicted(dataset, infer, count)
    figure, drawn = subplots("Images with their likeliest classes", 2 * len(predicted), tall=1.7)
    captions = []
    panels = zip(drawn[::2], drawn[1::2], predicted, strict=True)
    for shown, bars, (pixels, right, share) in panels:
        best = np.argsort(-share, kind="stable")[:TOP]
        names = [dataset.name_of(int(label)) for label in best]
        shown.imshow(pixels)
        shown.set_axis_off()
        shown.set_title(right, loc="left", fontsize=9)
        colours = [COLOURS[2] if name == right else GREY for name in names]
        bars.barh(range(len(names)), share[best], color=colours)
        bars.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1), xlabel="probability")
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        captions.append(f"{right}: {names[0]} {share[best[0]]:.0%}")
    text = "Four images" if len(predicted) == 4 else f"{len(predicted)} images"
    return picture(figure, f"{text}, by class and likeliest class: {'; '.join(captions)}.")


def example(dataset: ImageFolder, most: int) -> Example:
    """Choose the first image that `show_predictions` draws."""
    classes = np.array([dataset.name_of(label) for label in range(OUTPUTS)])
    beside = {"classes": classes, "label": np.array(dataset.class_of(0))}
    return Example(dataset.take(np.array([0])), beside, READING.format(output=dataset.output))
