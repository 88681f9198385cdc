"""How OpenVINO loads, runs and profiles a graph. A model repository takes this file along."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

    from helpers.formats import Arrays, OperatorTime

PRECISION = ["deployment", "inference_precision"]  # of a file's runtime information
_NAMES = {"f32": "fp32", "f16": "fp16", "i8": "int8", "u8": "int8"}  # of a kernel's precision
_FIELDS = ("layerType", "primitiveType", "runtimePrecision")  # of an execution graph's node
_MICROSECONDS = "execTimeMcs"  # of a run, on average, or "not_executed"
_RUNS = 3  # that are profiled


class OpenVinoSession:
    """A compiled model with one stream, so that one request uses all threads."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        compiled = _compiled(path, threads)
        self._request = compiled.create_infer_request()
        self._outputs = [output.get_any_name() for output in compiled.outputs]

    def run(self, inputs: Arrays) -> Arrays:
        results = self._request.infer(inputs, share_inputs=True)
        return {name: results[index] for index, name in enumerate(self._outputs)}


load = OpenVinoSession


def block_telemetry() -> None:
    """Keep OpenVINO and NNCF from reporting their use over the network when they are imported."""
    # they report nothing if this package of theirs cannot be imported
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def _compiled(path: Path, threads: int, **more: bool) -> openvino.CompiledModel:
    block_telemetry()
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": model.get_rt_info(PRECISION).astype(str),
    }
    return core.compile_model(model, "CPU", properties | more)


def profile(path: Path, threads: int, inputs: Arrays) -> list[OperatorTime]:
    """Return the operators' mean times in some runs, without the slow first one."""
    compiled = _compiled(path, threads, PERF_COUNT=True)
    request = compiled.create_infer_request()

    def executed() -> dict[str, dict[str, str]]:
        infos = {}
        for node in compiled.get_runtime_model().get_ordered_ops():
            info = {name: value.astype(str) for name, value in node.get_rt_info().items()}
            if info[_MICROSECONDS].isdigit():
                infos[node.get_friendly_name()] = info
        return infos

    request.infer(inputs)
    first = executed()
    for _ in range(_RUNS):
        request.infer(inputs)
    times: list[OperatorTime] = []
    for name, info in executed().items():
        kind, kernel, precision = (info[field] for field in _FIELDS)
        total = int(info[_MICROSECONDS]) * (_RUNS + 1)  # it is the mean of all runs so far
        once = int(first[name][_MICROSECONDS]) if name in first else 0
        ms = max(0.0, (total - once) / _RUNS / 1000)
        precision = _NAMES.get(precision, precision)
        times.append({"kind": kind, "kernel": kernel, "precision": precision, "ms": ms})
    return times
