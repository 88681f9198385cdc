"""TF-TRT: a SavedModel in which TensorRT runs what it can, and TensorFlow the rest.

It is made and loaded by the TensorFlow of the server's release, and only by one that still has
TensorRT: in NVIDIA's TensorFlow image of that release, or here if such a TensorFlow is installed.
"""

import shutil
from pathlib import Path
from typing import ClassVar

from helpers.formats import Build, Format
from helpers.formats.trt import TensorRt


class TfTrt(TensorRt):
    FILE = "model.savedmodel"  # a folder, with the name that Triton's TensorFlow backend expects
    SOURCES = ("tf-savedmodel",)
    PRECISIONS: ClassVar = {"gpu": ("fp16",)}
    RUNTIME = ("tensorflow",)
    SHOWN = ("TensorFlow", "TensorFlow-TensorRT")
    BUILT_FOR = ("max_batch_size",)
    IMAGE = "nvcr.io/nvidia/tensorflow:{release}-tf2-py3"

    def copy_source(self, source: Path, folder: Path, build: Build) -> str:
        return Path(shutil.copytree(source, folder / "source")).name


FORMAT: Format = TfTrt()
