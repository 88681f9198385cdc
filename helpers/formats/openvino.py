"""OpenVINO's intermediate representation, converted from ONNX or a SavedModel and run on the CPU.

bf16 is a property of execution, not of the file. It is written into the file's runtime information,
where `load` reads it. What an int8 graph leaves in floating point runs in what the processor
multiplies fastest, bf16 or fp32: OpenVINO's own choice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.formats import Arrays, Build, Source

FILE = "model.xml"
SOURCES = ("onnx", "tf-savedmodel")
PRECISIONS = {"cpu": ("fp32", "bf16", "int8")}
RUNTIME = ("openvino",)
SHOWN = ("OpenVINO", "OpenVINO IR")

_PRECISION = ["deployment", "inference_precision"]
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "dynamic"}


class OpenVinoSession:
    """A compiled model with one stream, so that one request uses all threads."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        _block_telemetry()
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": model.get_rt_info(_PRECISION).astype(str),
        }
        self._request = core.compile_model(model, "CPU", properties).create_infer_request()
        self._outputs = [output.get_any_name() for output in model.outputs]

    def run(self, inputs: Arrays) -> Arrays:
        results = self._request.infer(inputs, share_inputs=True)
        return {name: results[index] for index, name in enumerate(self._outputs)}


load = OpenVinoSession


def _block_telemetry() -> None:
    """Keep OpenVINO and NNCF from reporting their use over the network: they do so when they are
    imported, unless this package of theirs cannot be.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def make(source: Source, path: Path, build: Build) -> None:
    """Convert the file `source`, whose tensors already have their names."""
    _block_telemetry()
    import openvino

    model = openvino.convert_model(source)
    if build.precision == "int8":
        from helpers.formats import _int8

        model = _int8.quantise_openvino(model, build.calibration, build.bounds)
    model.set_rt_info(_HINTS[build.precision], _PRECISION)
    openvino.save_model(model, path, compress_to_fp16=False)
