"""TensorRT: an engine for one kind of GPU and one version of TensorRT, from ONNX or a SavedModel,
for any batch up to the largest.

A server can load only what its own TensorRT built. So an engine for a container is built in
NVIDIA's TensorRT image of the container's release. An engine for the embedded server is built in
this process. Source: github.com/triton-inference-server/server/issues/3173, which recommends that
image.
"""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from helpers.formats import Build, Setting, Source, _tensorrt, onnx
from helpers.formats._tensorrt import FACTS, MAX_GRAPHS, SAVED_MODEL, TIMINGS, Request

FILE = "model.plan"
SOURCES = ("onnx", "tf-savedmodel")
PRECISIONS = {"gpu": ("fp32", "fp16", "int8")}
RUNTIME = ("tensorrt", "torch")
DISPLAY_NAMES = ("NVIDIA TensorRT", "NVIDIA TensorRT")
DEPENDS_ON = ("max_batch_size", "capture_cuda_graph")
IMAGE = "nvcr.io/nvidia/tensorrt:{release}-py3"
load = _tensorrt.load

_FLAGS = {"fp32": "TF32 cleared", "fp16": "FP16", "int8": "FP16, INT8"}
_WHY_FLAGS = {
    "fp32": "TF32, the default of newer GPUs, would round inputs of multiplications to 10 bits.",
    "fp16": "Each layer runs in fp16 or fp32, whichever is faster on this GPU.",
    "int8": "Layers with scales may run in int8, all layers in fp16 or fp32.",
}


def asks(build: Build) -> list[Setting]:
    """Return what TensorRT's builder is given."""
    launches = (
        "The kernels of a batch are recorded and launched as one, for at most "
        f"{MAX_GRAPHS} batch sizes where this process runs the engine."
        if build.capture_cuda_graph
        else "Each kernel of a batch is launched alone."
    )
    return [
        Setting("builder flags", _FLAGS[build.precision], _WHY_FLAGS[build.precision]),
        *limits(build),
        Setting("CUDA graphs", "yes" if build.capture_cuda_graph else "no", launches),
    ]


def limits(build: Build) -> list[Setting]:
    """Return the shapes and the memory for which an engine, or TF-TRT's, is made."""
    profile = _tensorrt.profile(build.inputs, build.max_batch_size, build.samples)
    shapes = [
        Setting(
            f"optimization profile, {name}",
            "; ".join(f"{end} {' x '.join(map(str, shape))}" for end, shape in ends.items()),
            "The engine takes shapes from min to max. It is tuned for opt.",
        )
        for name, ends in profile.items()
    ]
    workspace = f"{_tensorrt.WORKSPACE_BYTES / 2**30:g} GiB"
    why = "The most scratch memory of a kernel. Less memory excludes some kernels."
    return [*shapes, Setting("workspace", workspace, why)]


def make(source: Source, path: Path, build: Build) -> None:
    """Build an engine, or TF-TRT's SavedModel if `path` is one, here or by `build.in_image`.

    Timing caches are next to the artifact, so that all artifacts of a target share them. Raises
    RuntimeError with the reason if it fails.
    """
    assert isinstance(source, Path)
    if build.in_image is None:
        _tensorrt.require_driver()
    shared = path.parent.parent
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as name:
        folder = Path(name)
        copied = folder / ("source" if path.suffix == SAVED_MODEL else onnx.FILE)
        if copied.name == "source":
            shutil.copytree(source, copied)
        elif source.is_dir():  # TensorRT reads a SavedModel as ONNX
            onnx.make(source, copied, replace(build, precision="fp32"))
        else:
            shutil.copyfile(source, copied)
        if build.precision == "int8":
            from helpers.formats import _int8

            _int8.quantise_onnx(copied, copied, build.calibration, symmetric=True)
        request = Request(
            source=copied.name,
            target=path.name,
            precision=build.precision,
            profile=_tensorrt.profile(build.inputs, build.max_batch_size, build.samples),
            cuda_graphs=build.capture_cuda_graph,
        )
        for timings in shared.glob(f"{TIMINGS}*"):
            shutil.copyfile(timings, folder / timings.name)
        if build.in_image is None:
            _tensorrt.build(request, folder)
        else:
            (folder / "request.json").write_text(json.dumps(request))
            shutil.copyfile(_tensorrt.__file__, folder / "build.py")
            build.in_image(folder, ["python3", "build.py", "request.json"])
        shutil.move(folder / path.name, path)
        for timings in folder.glob(f"{TIMINGS}*"):
            shutil.move(timings, shared / timings.name)
        if (folder / FACTS).exists():
            shutil.move(folder / FACTS, path.with_name(FACTS))
