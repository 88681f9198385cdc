"""TensorRT: an engine for one kind of GPU and one version of TensorRT, from ONNX or a SavedModel,
with any batch up to the largest.

A server loads only what its own TensorRT built. So the engine for a container is built in NVIDIA's
TensorRT image of the container's release, and the one for the embedded server in this process.
Source: github.com/triton-inference-server/server/issues/3173, which recommends that image.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from helpers.formats import _tensorrt, onnx
from helpers.formats._tensorrt import FACTS, WORKSPACE_BYTES, load
from helpers.formats.onnx import OPSET

__all__ = [
    "BUILT_FOR",
    "FACTS",
    "FILE",
    "IMAGE",
    "OPSET",
    "PRECISIONS",
    "RUNTIME",
    "SHOWN",
    "SOURCES",
    "load",
    "make",
    "request",
]

FILE = "model.plan"
SOURCES = ("onnx", "tf-savedmodel")
PRECISIONS = {"gpu": ("fp32", "fp16")}
RUNTIME = ("tensorrt", "torch")
SHOWN = ("NVIDIA TensorRT", "NVIDIA TensorRT")
BUILT_FOR = ("max_batch_size", "capture_cuda_graph")
IMAGE = "nvcr.io/nvidia/tensorrt:{release}-py3"
TIMINGS = ".tensorrt-timings"  # beside the artefacts of a target: shared by its builds


def request(
    precision: str, inputs: dict[str, Any], max_batch_size: int, capture_cuda_graph: bool
) -> dict[str, Any]:
    """Say what to build, in the words of `_tensorrt.build`."""
    shapes = {name: list(array.shape[1:]) for name, array in inputs.items()}
    return {
        "onnx": onnx.FILE,
        "engine": FILE,
        "timing_cache": TIMINGS,
        "precision": precision,
        "profile": _tensorrt.profile(shapes, max_batch_size),
        "workspace_bytes": WORKSPACE_BYTES,
        "cuda_graphs": capture_cuda_graph,
    }


def make(
    source: Any,
    path: Path,
    *,
    precision: str,
    inputs: dict[str, Any],
    outputs: tuple[str, ...],
    max_batch_size: int = 1,
    capture_cuda_graph: bool = False,
    opset: int | None = None,
    in_image: Callable[[Path, list[str]], None] | None = None,
) -> None:
    """Build an engine from the ONNX file or the SavedModel at `source`.

    `in_image` runs a command in an image, with a folder that the command works in; without it the
    engine is built here. Raises RuntimeError where that cannot be.
    """
    if in_image is None:
        _tensorrt.require_driver()
        if find_spec("tensorrt") is None:
            raise RuntimeError("tensorrt is not installed: pip install tensorrt")
    timings = path.parent.parent / TIMINGS
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as name:
        folder = Path(name)
        target = folder / onnx.FILE
        if source.is_dir():  # a SavedModel, which TensorRT reads as ONNX
            onnx.make(source, target, precision="fp32", inputs=inputs, outputs=outputs, opset=opset)
        else:
            shutil.copyfile(source, target)
        if timings.exists():
            shutil.copyfile(timings, folder / TIMINGS)
        asked = request(precision, inputs, max_batch_size, capture_cuda_graph)
        (folder / "request.json").write_text(json.dumps(asked))
        shutil.copyfile(_tensorrt.__file__, folder / "build.py")
        if in_image is None:
            _tensorrt.build(asked, folder)
        else:
            in_image(folder, ["python3", "build.py", "request.json"])
        for made in (FILE, FACTS):
            shutil.move(folder / made, path.with_name(made))
        if (folder / TIMINGS).exists():
            shutil.move(folder / TIMINGS, timings)
