"""Labelled batches from a folder of images, and scores of outputs."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from helpers.errors import DataError
from helpers.models import Arrays, Dataset
from helpers.models._arrays import spread
from helpers.models._tables import GENERATED, origin
from helpers.models.resnet50 import CROPPED, RESIZED
from helpers.store import usable_cores

SUFFIXES = {".gif", ".jpeg", ".jpg", ".png"}
LAYOUT = "Use <folder>/<class>/<image>.JPEG, where a class is a number from 0 on or a name."
FORMATS = ("GIF", "JPEG", "PNG")  # no others: a decoder may start programs, such as Ghostscript
OUTPUTS = 1000
LONGEST = 16  # times the shorter side: the rest is cut off first, since resizing would enlarge it
# ImageNet's mean and deviation of red, green and blue, from 0 to 1, as torchvision publishes them
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class ImageFolder(Dataset):
    """The images of `<folder>/<class>/`, in order of class and path.

    A class is its folder's name where all names are numbers (NVIDIA's prepared ImageNet), else the
    rank of that name (torchvision's convention). Raises DataError for a layout that is not this.
    """

    def __init__(
        self, folder: Path, input_name: str, output_name: str, side: int = CROPPED
    ) -> None:
        self._input, self.output = input_name, output_name
        self._read = partial(preprocess, side=side)
        self._origin = origin(folder)
        try:
            classes = _classes(folder)
            files = sorted(
                (label, path) for part, label in classes.items() for path in _images(part)
            )
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error}") from None
        self._names = _names(folder, classes)
        self._files = [path for _, path in files]
        self._labels = np.array([label for label, _ in files])

    @property
    def facts(self) -> dict[str, str | int]:
        """Return the numbers of images and classes, and whether the images were generated."""
        return {"images": len(self), "classes": len(self._names), "origin": self._origin}

    def __len__(self) -> int:
        return len(self._files)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Arrays]:
        """Yield float32 [batch, 3, side, side], and decode the next batch meanwhile."""
        files = [self._files[index] for index in spread(len(self), limit)]
        parts = (files[start : start + batch_size] for start in range(0, len(files), batch_size))
        pool = ThreadPoolExecutor(usable_cores())
        try:
            started = (pool.map(self._read, part) for part in parts)
            for ready, _ in pairwise(chain(started, [iter(())])):  # of a pair, both are started
                yield {self._input: np.stack(list(ready))}
        finally:
            pool.shutdown(cancel_futures=True)

    def take(self, places: NDArray[np.int64]) -> Arrays:
        """Read the images at `places`, float32 [images, 3, side, side]."""
        with ThreadPoolExecutor(usable_cores()) as pool:
            images = list(pool.map(self._read, [self._files[index] for index in places]))
        return {self._input: np.stack(images)}

    def class_of(self, index: int) -> str:
        """Return the name of the class of the image at `index`."""
        return self.name_of(int(self._labels[index]))

    def name_of(self, label: int) -> str:
        """Return a class's name, or its number if the set does not have it."""
        return self._names.get(label, f"class {label}")

    def score(self, outputs: Arrays) -> dict[str, float]:
        """Return the fractions of images whose class has the largest logit, or one of the five
        largest; raise DataError for outputs not [images, 1000].
        """
        logits = outputs[self.output]
        if logits.shape != (len(self), OUTPUTS):
            expected = [len(self), OUTPUTS]
            raise DataError(f"{self.output} is {list(logits.shape)} and should be {expected}")
        best = np.argsort(-logits.astype(np.float32), axis=1, kind="stable")[:, :5]
        hits = best == self._labels[:, None]
        return {"top1": float(hits[:, 0].mean()), "top5": float(hits.any(axis=1).mean())}

    def decisions(self, outputs: Arrays) -> NDArray[np.int64]:
        """Return the class of each image."""
        return np.asarray(outputs[self.output].argmax(axis=1))


def normalise(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn uint8 [..., height, width, 3] into normalised float32 [..., 3, height, width]."""
    scaled = (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))


def preprocess(path: Path, side: int = CROPPED) -> NDArray[np.float32]:
    """Read one image as float32 [3, side, side]: shorter side to 256, centre crop, normalised.

    An image of side x side pixels is taken as it is.
    """
    try:
        with Image.open(path, formats=FORMATS) as opened:
            palette = opened.mode == "P"  # whose transparent colours only RGBA has
            image = (opened.convert("RGBA") if palette else opened).convert("RGB")
    except Exception as error:  # damaged bytes can fail in any way inside a decoder
        raise DataError(f"{path} cannot be read as an image: {error}") from None
    if image.size != (side, side):
        shorter = min(image.size)
        image = _centre(image, *(min(length, LONGEST * shorter) for length in image.size))
        width, height = (length * RESIZED // shorter for length in image.size)
        image = _centre(image.resize((width, height), Image.Resampling.BICUBIC), side, side)
    return normalise(np.asarray(image))


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _classes(folder: Path) -> dict[Path, int]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. {LAYOUT}")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not folders:
        raise DataError(f"{folder} has no class folders. {LAYOUT}")
    numbered = all(path.name.isascii() and path.name.isdecimal() for path in folders)
    classes = {path: int(path.name) if numbered else rank for rank, path in enumerate(folders)}
    for path, label in classes.items():
        if folder.resolve().is_relative_to(path.resolve()):
            raise DataError(f"{path} is a link to a folder that contains {folder}. {LAYOUT}")
        if label >= OUTPUTS:
            raise DataError(f"{path} is class {label}, but ResNet50 has 0 to {OUTPUTS - 1}")
    return classes


def _names(folder: Path, classes: dict[Path, int]) -> dict[int, str]:
    """Return the name of each class: its folder's, or the one of a generated set."""
    try:
        class_names = json.loads((folder / GENERATED).read_text())["classes"]
    except (OSError, ValueError, KeyError):
        class_names = []
    names = {label: path.name for path, label in classes.items()}
    return names | {label: class_names[label] for label in names if label < len(class_names)}


def _images(folder: Path) -> list[Path]:
    files = [
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not files:
        raise DataError(f"{folder} has no images ({', '.join(sorted(SUFFIXES))}). {LAYOUT}")
    return files
