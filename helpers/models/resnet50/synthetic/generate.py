"""Which generated images there are, on disk and in memory, each fixed by its seed."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.models._synthetic import size_of
from helpers.models.resnet50.data import MARKER
from helpers.models.resnet50.synthetic.textures import FRAME, PATTERNS, render

SETS = {"generated": 50, "generated-small": 8}  # evaluation images per class
CLASSES = len(PATTERNS)

EVALUATION_SEED = 1
TRAINING_SEED = 2


def write_images(name: str, folder: Path) -> None:
    """Write the set `name` as files `<folder>/<class>/<number>.JPEG`.

    Raises DataError if there is no such set.
    """
    count = size_of(name, SETS, " or a folder of images")
    images = [(texture, number) for texture in range(CLASSES) for number in range(count)]
    for texture in range(CLASSES):
        (folder / str(texture)).mkdir(parents=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda image: _write(folder, *image), images):
            pass  # a failure is raised here
    (folder / MARKER).write_text(json.dumps({"name": name, "classes": list(PATTERNS)}) + "\n")


def training_batch(
    step: int, batch_size: int, pixels: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw images uint8 [batch, pixels, pixels, 3] for training, and their classes int64 [batch].

    Their textures are as large as an evaluation image's after its shorter side was made 256.
    """
    rng = np.random.default_rng([TRAINING_SEED, step])
    labels = rng.integers(0, CLASSES, batch_size)
    images = [render(int(label), (pixels, pixels), 1.0, rng) for label in labels]
    return np.stack(images), labels


def _write(folder: Path, texture: int, number: int) -> None:
    from PIL import Image

    rng = np.random.default_rng([EVALUATION_SEED, texture, number])
    short = int(rng.integers(240, 361))
    long = int(short * rng.uniform(1, 1.5))
    size = (short, long) if rng.random() < 0.3 else (long, short)
    pixels = render(texture, size, FRAME / short, rng)
    Image.fromarray(pixels).save(folder / str(texture) / f"{number:04d}.JPEG", quality=90)
