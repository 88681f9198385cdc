"""TensorRT: an engine for one kind of GPU and one version of TensorRT, from ONNX or a SavedModel,
for any batch up to the largest.

A server can load only what its own TensorRT built. So the engine for a container is built in
NVIDIA's TensorRT image of the container's release, and the one for the embedded server in this
process. Source: github.com/triton-inference-server/server/issues/3173, which recommends that image.
"""

import json
import shutil
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from helpers.formats import Build, Format, Source, _tensorrt, onnx
from helpers.formats._tensorrt import FACTS, TIMINGS, Request, load


class TensorRt:
    FILE = "model.plan"
    SOURCES: tuple[str, ...] = ("onnx", "tf-savedmodel")
    PRECISIONS: ClassVar[dict[str, tuple[str, ...]]] = {"gpu": ("fp32", "fp16")}
    RUNTIME: tuple[str, ...] = ("tensorrt", "torch")
    SHOWN = ("NVIDIA TensorRT", "NVIDIA TensorRT")
    BUILT_FOR: tuple[str, ...] = ("max_batch_size", "capture_cuda_graph")
    IMAGE = "nvcr.io/nvidia/tensorrt:{release}-py3"
    load = staticmethod(load)

    def make(self, source: Source, path: Path, build: Build) -> None:
        """Build from the file `source`, in this process or by `build.in_image`.

        The timing cache is next to the artefact, so that all artefacts of a target share it.
        Raises RuntimeError with the reason if it fails.
        """
        assert isinstance(source, Path)
        if build.in_image is None:
            _tensorrt.require_driver()
            package = self.RUNTIME[0]
            if find_spec(package) is None:
                raise RuntimeError(f"{package} is not installed: pip install {package}")
        timings = path.parent.parent / TIMINGS
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as name:
            folder = Path(name)
            request = Request(
                source=self.copy_source(source, folder, build),
                target=self.FILE,
                precision=build.precision,
                profile=_tensorrt.profile(build.inputs, build.max_batch_size),
                cuda_graphs=build.capture_cuda_graph,
            )
            if timings.exists():
                shutil.copyfile(timings, folder / TIMINGS)
            if build.in_image is None:
                _tensorrt.build(request, folder)
            else:
                (folder / "request.json").write_text(json.dumps(request))
                shutil.copyfile(_tensorrt.__file__, folder / "build.py")
                build.in_image(folder, ["python3", "build.py", "request.json"])
            shutil.move(folder / self.FILE, path)
            for file, target in ((FACTS, path.with_name(FACTS)), (TIMINGS, timings)):
                if (folder / file).exists():
                    shutil.move(folder / file, target)

    def copy_source(self, source: Path, folder: Path, build: Build) -> str:
        """Put what is built from into `folder` and name it; TensorRT reads a SavedModel as ONNX."""
        target = folder / onnx.FORMAT.FILE
        if source.is_dir():
            onnx.FORMAT.make(source, target, replace(build, precision="fp32"))
        else:
            shutil.copyfile(source, target)
        return target.name


FORMAT: Format = TensorRt()
