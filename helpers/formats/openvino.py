"""OpenVINO's intermediate representation, converted from ONNX or a SavedModel and run on the CPU.

bf16 is a property of execution, not of the file. It is written into the file's runtime information,
where `load` reads it. What an int8 graph leaves in floating point runs in what the processor
multiplies fastest, bf16 or fp32: OpenVINO's own choice.
"""

from collections import Counter
from pathlib import Path

from helpers.formats import Build, GraphFacts, Setting, Source, _int8, _openvino

FILE = "model.xml"
SOURCES = ("onnx", "tf-savedmodel")
PRECISIONS = {"cpu": ("fp32", "bf16", "int8")}
RUNTIME = ("openvino",)
TOOLS = {"int8": ("nncf",)}
DISPLAY_NAMES = ("OpenVINO", "OpenVINO IR")
load, profile = _openvino.OpenVinoSession, _openvino.profile

_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "dynamic"}
_NO_OPERATORS = ("Constant", "Parameter", "Result")


def make(source: Source, path: Path, build: Build) -> None:
    """Convert the file `source`, whose tensors already have their names."""
    _openvino.block_telemetry()
    import openvino

    model = openvino.convert_model(source)
    build.record("openvino.convert_model", f"'{Path(str(source)).name}'")
    if build.precision == "int8":
        model = _int8.quantise_openvino(model, build.calibration, build.tolerances, build.record)
    model.set_rt_info(_HINTS[build.precision], _openvino.PRECISION)
    build.record("model.set_rt_info", repr(_HINTS[build.precision]), repr(_openvino.PRECISION))
    openvino.save_model(model, path, compress_to_fp16=False)
    build.record("openvino.save_model", "model", f"'{FILE}'", compress_to_fp16=False)


def describe(path: Path) -> GraphFacts:
    """Count the operators of a file; its weights are not read."""
    _openvino.block_telemetry()
    import openvino

    kinds = [node.get_type_name() for node in openvino.Core().read_model(path).get_ops()]
    return {"operators": dict(Counter(kind for kind in kinds if kind not in _NO_OPERATORS))}


def asks(build: Build) -> list[Setting]:
    """Return the precision in which the file is to be executed."""
    whys = {
        "fp32": "The CPU computes in the precision of the weights.",
        "bf16": "The file keeps fp32 weights. The CPU rounds them when it loads them.",
        "int8": "The other layers run in bf16 or fp32, whichever the CPU multiplies faster.",
    }
    return [Setting("INFERENCE_PRECISION_HINT", _HINTS[build.precision], whys[build.precision])]
