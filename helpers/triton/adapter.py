"""Triton's Python backend around one format's session: `model.py` of every served model.

The repository holds it beside `runtime.py`, the format's own module. All the requests that Triton
hands over in one call run as one batch. It imports numpy and the backend's utilities only, so that
the repository can be served anywhere.

On a GPU tensors stay there where the session offers `run_on_device`: it takes PyTorch's tensors
beside arrays, and what it gives goes back to Triton by DLPack.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb


def load_runtime(path):
    spec = importlib.util.spec_from_file_location("runtime", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken(tensor):
    """Take an input from where it is: an array of this host's memory, or a GPU's as PyTorch's."""
    if tensor.is_cpu():
        return tensor.as_numpy()
    import torch

    return torch.from_dlpack(tensor.to_dlpack())


def joined(values):
    """Join the same input of several requests; on the GPU if any of them is there."""
    if len(values) == 1 or all(isinstance(each, np.ndarray) for each in values):
        return values[0] if len(values) == 1 else np.concatenate(values)
    import torch

    (device,) = {each.device for each in values if not isinstance(each, np.ndarray)}
    return torch.cat([torch.as_tensor(each, device=device) for each in values])


def given(name, values):
    """Hand an output to Triton, from where it is."""
    if isinstance(values, np.ndarray):
        return pb.Tensor(name, values)
    return pb.Tensor.from_dlpack(name, values)


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        runtime = load_runtime(folder / "runtime.py")
        self.session = runtime.load(
            folder / parameters["file"], int(parameters["threads"]), parameters["device"]
        )
        on_device = parameters["device"] == "gpu" and hasattr(self.session, "run_on_device")
        self.run = self.session.run_on_device if on_device else self.session.run
        self.outputs = [output["name"] for output in config["output"]]

    def execute(self, requests):
        arrays = [
            {tensor.name(): taken(tensor) for tensor in request.inputs()} for request in requests
        ]
        sizes = [len(next(iter(inputs.values()))) for inputs in arrays]
        batch = {name: joined([inputs[name] for inputs in arrays]) for name in arrays[0]}
        try:
            outputs = self.run(batch)
        except Exception as error:  # every request of the batch must get an answer
            failure = pb.TritonError(f"{type(error).__name__}: {error}")
            return [pb.InferenceResponse(error=failure) for _ in requests]
        ends = np.cumsum(sizes)
        return [
            pb.InferenceResponse(
                [given(name, outputs[name][end - size : end]) for name in self.outputs]
            )
            for size, end in zip(sizes, ends, strict=True)
        ]
