"""Showing images of an evaluation set as the network sees them."""

import numpy as np
from PIL import Image

from helpers.models import Dataset
from helpers.models.resnet50.data import DEVIATION, MEAN

SIDE = 112
GAP = 4


def show_images(dataset: Dataset, count: int = 10) -> Image.Image:
    """Lay `count` images, spread over the whole set, side by side, after resizing and cropping."""
    (batch,) = dataset.batches(count, limit=count)
    (images,) = batch.values()
    sheet = Image.new("RGB", (len(images) * (SIDE + GAP) - GAP, SIDE), "white")
    for place, image in enumerate(images):
        pixels = (image.transpose(1, 2, 0) * DEVIATION + MEAN).clip(0, 1) * 255
        picture = Image.fromarray(pixels.round().astype(np.uint8)).resize((SIDE, SIDE))
        sheet.paste(picture, (place * (SIDE + GAP), 0))
    return sheet
