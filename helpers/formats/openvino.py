"""OpenVINO's own representation, converted from ONNX or a SavedModel and run on the CPU.

bf16 is a property of execution, not of the file: it is written into the file's runtime information,
where `load` finds it.
"""

from pathlib import Path
from typing import Any

FILE = "model.xml"
SOURCES = ("onnx", "tf-savedmodel")
PRECISIONS = {"cpu": ("fp32", "bf16")}
RUNTIME = ("openvino",)
SHOWN = ("OpenVINO", "OpenVINO IR")
_PRECISION = ["deployment", "inference_precision"]
_HINTS = {"fp32": "f32", "bf16": "bf16"}


class OpenVinoSession:
    """A compiled model with one stream, so that one request has all the threads."""

    def __init__(self, path: Path, threads: int) -> None:
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

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        results = self._request.infer(inputs, share_inputs=True)
        return {name: results[index] for index, name in enumerate(self._outputs)}


def make(
    source: Any, path: Path, *, precision: str, inputs: dict[str, Any], outputs: tuple[str, ...]
) -> None:
    """Convert the file `source`; `inputs` and `outputs` are named there already."""
    import openvino

    model = openvino.convert_model(source)
    model.set_rt_info(_HINTS[precision], _PRECISION)
    openvino.save_model(model, path, compress_to_fp16=False)


def load(path: Path, threads: int, device: str) -> OpenVinoSession:
    return OpenVinoSession(path, threads)
