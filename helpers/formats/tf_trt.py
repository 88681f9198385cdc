"""TF-TRT: a SavedModel in which TensorRT runs what it can, and TensorFlow the rest.

It is made and loaded by one TensorFlow, that of the server's release, and only by those that still
have TensorRT: in a container of NVIDIA's TensorFlow image of that release, or here where it is
installed.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.formats import _tensorrt, _tf_trt
from helpers.formats._tf_trt import WORKSPACE_BYTES, load

__all__ = [
    "BUILT_FOR",
    "FILE",
    "IMAGE",
    "PRECISIONS",
    "RUNTIME",
    "SHOWN",
    "SOURCES",
    "load",
    "make",
]

FILE = "model.savedmodel"  # a folder, named as Triton's own backend wants it
SOURCES = ("tf-savedmodel",)
PRECISIONS = {"gpu": ("fp16",)}
RUNTIME = ("tensorflow",)
SHOWN = ("TensorFlow", "TensorFlow-TensorRT")
BUILT_FOR = ("max_batch_size",)
IMAGE = "nvcr.io/nvidia/tensorflow:{release}-tf2-py3"


def make(
    source: Any,
    path: Path,
    *,
    precision: str,
    inputs: dict[str, Any],
    outputs: tuple[str, ...],
    max_batch_size: int = 1,
    in_image: Callable[[Path, list[str]], None] | None = None,
) -> None:
    """Convert the SavedModel at `source`.

    `in_image` runs a command in an image, with a folder that the command works in; without it the
    conversion is made here. Raises RuntimeError where that cannot be.
    """
    if in_image is None:
        _tf_trt.require_driver()
    shapes = {name: list(array.shape[1:]) for name, array in inputs.items()}
    request: dict[str, Any] = {
        "source": "source",
        "target": FILE,
        "precision": precision,
        "profile": _tensorrt.profile(shapes, max_batch_size),
        "workspace_bytes": WORKSPACE_BYTES,
    }
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as name:
        folder = Path(name)
        shutil.copytree(source, folder / request["source"])
        (folder / "request.json").write_text(json.dumps(request))
        shutil.copyfile(_tf_trt.__file__, folder / "build.py")
        if in_image is None:
            _tf_trt.build(request, folder)
        else:
            in_image(folder, ["python3", "build.py", "request.json"])
        shutil.move(folder / FILE, path)
