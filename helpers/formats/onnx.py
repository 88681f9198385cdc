"""ONNX: exported from PyTorch by the dynamo exporter with a dynamic batch, run by ONNX Runtime."""

import logging
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

FILE = "model.onnx"
SOURCES = ("torch",)
PRECISIONS = {"cpu": ("fp32",), "gpu": ("fp32", "fp16")}
RUNTIME = ("onnxruntime",)
SHOWN = ("ONNX Runtime", "ONNX")


class OnnxSession:
    """An ONNX Runtime session; its idle threads sleep rather than spin, or they would slow the
    server beside them.
    """

    def __init__(self, path: Path, threads: int, device: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        provider = "CUDAExecutionProvider" if device == "gpu" else "CPUExecutionProvider"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
        if provider not in self._session.get_providers():
            raise RuntimeError(
                f"ONNX Runtime has no {provider} here: it would take the CPU instead"
            )
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))


def make(
    source: Any, path: Path, *, precision: str, inputs: dict[str, Any], outputs: tuple[str, ...]
) -> None:
    """Export a PyTorch module; the weights lie in the one file, so below 2 GB."""
    import torch

    module = deepcopy(source).half() if precision == "fp16" else source
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its notes on torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations while exporting
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def load(path: Path, threads: int, device: str) -> OnnxSession:
    return OnnxSession(path, threads, device)
