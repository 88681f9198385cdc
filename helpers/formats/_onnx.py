"""How ONNX Runtime loads, runs and profiles a graph. A model repository takes this file along."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime
    import torch

    from helpers.formats import Array, Arrays, OperatorTime

PROFILED_RUNS = 3
PRECISION_OF = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # an input's type
PRECISION_OF |= {"int8": "int8", "uint8": "int8"}


class OnnxSession:
    """An ONNX Runtime session. Its idle threads sleep: spinning, they would slow down a server."""

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import onnxruntime

        if device == "gpu":
            onnxruntime.preload_dlls()  # CUDA and cuDNN, where pip installed them
        options = _options(threads)
        provider = "CUDAExecutionProvider" if device == "gpu" else "CPUExecutionProvider"
        chosen = {"use_tf32": "0"} if device == "gpu" else {}  # fp32 is fp32
        self._session = onnxruntime.InferenceSession(str(path), options, [(provider, chosen)])
        if provider not in self._session.get_providers():
            raise RuntimeError(f"ONNX Runtime has no {provider} and would use the CPU instead")
        self._device = "cuda" if device == "gpu" else "cpu"
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def run_on_device(self, inputs: Mapping[str, Array | torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run as `run` does, but inputs may be on the device, and outputs stay there."""
        import torch

        device = self._device
        tensors = {name: torch.as_tensor(value, device=device) for name, value in inputs.items()}
        binding = self._session.io_binding()
        for name, tensor in tensors.items():
            element = str(tensor.dtype).removeprefix("torch.")
            binding.bind_input(name, device, 0, element, tuple(tensor.shape), tensor.data_ptr())
        for output in self._session.get_outputs():
            binding.bind_output(output.name, device)
        if device == "cuda":
            torch.cuda.synchronize()  # ONNX Runtime reads the inputs on a stream of its own
        self._session.run_with_iobinding(binding)
        outputs = {}
        for output, value in zip(self._session.get_outputs(), binding.get_outputs(), strict=True):
            tensor = torch.from_dlpack(value)
            is_bool = output.type == "tensor(bool)"  # DLPack carries it as a byte
            outputs[output.name] = tensor.view(torch.bool) if is_bool else tensor
        return outputs


load = OnnxSession


def _options(threads: int) -> onnxruntime.SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def profile(path: Path, threads: int, inputs: Arrays) -> list[OperatorTime]:
    """Return the operators' times in the fastest of some runs, from ONNX Runtime's trace."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = _options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "trace")
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        for _ in range(PROFILED_RUNS + 1):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = [event for event in events if event["name"] == "model_run"]
    fastest = min(runs[1:], key=lambda run: run["dur"])
    begin, end = fastest["ts"], fastest["ts"] + fastest["dur"]
    times: list[OperatorTime] = []
    for event in events:
        if event["cat"] != "Node" or not begin <= event["ts"] < end:
            continue
        node = event["args"]
        kernel = node["provider"].removesuffix("ExecutionProvider")
        kernel += ", NCHWc" if "_nchwc" in event["name"] else ""
        types = [name for tensor in node["input_type_shape"] for name in tensor]
        precision = PRECISION_OF.get(types[0], types[0]) if types else ""
        ms = event["dur"] / 1000
        times.append({"kind": node["op_name"], "kernel": kernel, "precision": precision, "ms": ms})
    return times
