"""Generated images, on disk and in memory, each fixed by its seed.

They show ten classes of textures, which are arithmetic on a pixel's position.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from helpers.models import Config
from helpers.models._synthetic import lookup_size
from helpers.models._tables import GENERATED
from helpers.models.resnet50 import IMAGES, TRAINING
from helpers.store import usable_cores

# images per class, to evaluate and of the training distribution
SETS = {"generated": (16, 16), "generated-small": (8, 4)}
EVALUATION_SEED, TRAINING_SEED, FILE_SEED = 1, 2, 3
FRAME = 256  # textures are as large as if an image's shorter side had this many pixels
PERIOD = (12.0, 22.0)  # pixels of that image in which a pattern repeats
TAU = np.float32(2 * np.pi)

Floats = NDArray[np.floating[Any]]
Pattern = Callable[[Floats, Floats, np.random.Generator], Floats]


def write(config: Config, folder: Path) -> None:
    """Write the set as files `<folder>/<validation or train>/<class>/<number>.JPEG`."""
    name, parts = config.dataset, (folder / IMAGES, folder / TRAINING)
    counts = lookup_size(name, SETS, " or a folder of images")
    seeds = EVALUATION_SEED, FILE_SEED
    for count, seed, part in zip(counts, seeds, parts, strict=True):
        images = [(seed, texture, number) for texture in range(CLASSES) for number in range(count)]
        for texture in range(CLASSES):
            (part / str(texture)).mkdir(parents=True)
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(partial(_write, part), images))  # raises a failure
        (part / GENERATED).write_text(json.dumps({"name": name, "classes": list(PATTERNS)}) + "\n")


def training_batch(
    step: int, batch_size: int, pixels: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw images uint8 [batch, pixels, pixels, 3] for training, and their classes int64 [batch].

    Their textures are as large as an evaluation image's after its shorter side was made 256.
    """
    rng = np.random.default_rng([TRAINING_SEED, step])
    labels = rng.integers(0, CLASSES, batch_size)
    images = [_render(int(label), (pixels, pixels), 1.0, rng) for label in labels]
    return np.stack(images), labels


def _write(folder: Path, image: tuple[int, int, int]) -> None:
    rng, (_, texture, number) = np.random.default_rng(image), image
    short = int(rng.integers(240, 361))
    long = int(short * rng.uniform(1, 1.5))
    size = (short, long) if rng.random() < 0.3 else (long, short)
    pixels = _render(texture, size, FRAME / short, rng)
    Image.fromarray(pixels).save(folder / str(texture) / f"{number:04d}.JPEG", quality=90)


def _render(
    texture: int, size: tuple[int, int], pixel: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw an image of class `texture`, uint8 [height, width, 3].

    Its colours, scale, angle, light and noise are random. `size` is (width, height); `pixel` is the
    distance of two pixels, in pixels of an image whose shorter side is FRAME.
    """
    width, height = size
    angle, step = rng.uniform(-0.5, 0.5), pixel / rng.uniform(*PERIOD)
    y, x = np.ogrid[:height, :width]
    across, along = step * np.cos(angle), step * np.sin(angle)
    start = rng.uniform(0, 8, 2)
    u = (x * across + y * along + start[0]).astype(np.float32)
    v = (y * across - x * along + start[1]).astype(np.float32)
    value = list(PATTERNS.values())[texture](u, v, rng)[..., None]

    dark = rng.uniform(0, 0.35) + rng.uniform(0, 0.2, 3).astype(np.float32)
    light = dark + rng.uniform(0.2, 0.35) + rng.uniform(0, 0.2, 3).astype(np.float32)
    slope = rng.uniform(-0.2, 0.2, 2)
    shade = 1 + slope[0] * (x / width - 0.5) + slope[1] * (y / height - 0.5)
    image = (dark + (light - dark) * value) * shade.astype(np.float32)[..., None]
    image += rng.uniform(0, 0.06) * rng.standard_normal(image.shape, dtype=np.float32)
    return np.asarray(np.clip(image, 0, 1) * 255, dtype=np.uint8)


def _edge(wave: Floats, sharpness: float = 2) -> Floats:
    """Turn a signed wave into 0 and 1 with a soft edge between."""
    return np.asarray(np.clip(0.5 + np.float32(sharpness) * wave, 0, 1), dtype=np.float32)


def _cell(u: Floats) -> Floats:
    """Return the position within a cell of length 1, from -0.5 to 0.5."""
    return np.asarray(u - np.floor(u) - 0.5, dtype=np.float32)


def _noise(u: Floats, v: Floats, rng: np.random.Generator) -> Floats:
    """Interpolate random values of a 64 x 64 lattice smoothly (value noise), in [0, 1]."""
    lattice = rng.random((64, 64), dtype=np.float32)
    i, j = np.floor(u).astype(np.int32), np.floor(v).astype(np.int32)
    s, t = u - i.astype(np.float32), v - j.astype(np.float32)
    s, t = s * s * (3 - 2 * s), t * t * (3 - 2 * t)
    i, j, i1, j1 = i & 63, j & 63, (i + 1) & 63, (j + 1) & 63
    low = lattice[i, j] + (lattice[i1, j] - lattice[i, j]) * s
    high = lattice[i, j1] + (lattice[i1, j1] - lattice[i, j1]) * s
    return np.asarray(low + (high - low) * t, dtype=np.float32)


def _clouds(u: Floats, v: Floats, rng: np.random.Generator) -> Floats:
    octaves = sum(_noise(u * 2**k, v * 2**k, rng) / 2**k for k in range(3))
    return np.asarray(octaves / 1.75, dtype=np.float32)


def _bricks(u: Floats, v: Floats, rng: np.random.Generator) -> Floats:
    mortar = np.minimum(0.5 - np.abs(_cell(v)), 1 - 2 * np.abs(_cell(u / 2 + np.floor(v) / 2)))
    return _edge(10 * (mortar - 0.1))


PATTERNS: dict[str, Pattern] = {  # a class is its index in this order
    "stripes": lambda u, v, rng: _edge(np.sin(TAU * u)),
    "checks": lambda u, v, rng: _edge(2 * np.sin(TAU * u) * np.sin(TAU * v)),
    "dots": lambda u, v, rng: _edge(5 * (0.28 - np.hypot(_cell(u), _cell(v)))),
    "clouds": _clouds,
    "waves": lambda u, v, rng: _edge(np.sin(TAU * (u + 0.3 * np.sin(TAU * v / 2)))),
    "rings": lambda u, v, rng: _edge(np.sin(TAU * 3 * np.hypot(_cell(u / 3), _cell(v / 3)))),
    "grid": lambda u, v, rng: _edge(10 * (0.1 - np.minimum(abs(_cell(u)), abs(_cell(v))))),
    "wood": lambda u, v, rng: _edge(np.sin(TAU * (u + 2 * _noise(u / 2, v / 6, rng))), 0.6),
    "bricks": _bricks,
    "spots": lambda u, v, rng: _edge(6 * (_noise(1.5 * u, 1.5 * v, rng) - 0.55)),
}
CLASSES = len(PATTERNS)
