"""Triton's Python backend around one format's session: `model.py` of every served model.

The repository holds it next to `runtime.py`, the format's own module, or `runtime`, a package. All
the requests that Triton hands over in one call run as one batch, unless the model has no dimension
for it. What a session counts goes to Triton's metrics. It imports numpy and the backend's utilities
only, so that the repository can be served anywhere, and keeps to Python 3.8, which older releases'
images have.

On a GPU, tensors stay there if the session has `run_on_device`: it takes PyTorch's tensors as well
as arrays, and its outputs go back to Triton by DLPack.
"""

import gc
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb


def to_array(tensor):
    """Return an input where it is: an array in this host's memory, or PyTorch's tensor on a GPU."""
    if tensor.is_cpu():
        return tensor.as_numpy()
    import torch

    return torch.from_dlpack(tensor.to_dlpack())


def concatenate(values):
    """Join the same input of several requests; on the GPU if any of them is there."""
    if all(isinstance(each, np.ndarray) for each in values):
        return np.concatenate(values)
    import torch

    (device,) = {each.device for each in values if not isinstance(each, np.ndarray)}
    return torch.cat([torch.as_tensor(each, device=device) for each in values])


def to_triton(name, values):
    """Return an output as Triton's tensor, where it is."""
    if isinstance(values, np.ndarray):
        return pb.Tensor(name, values)
    return pb.Tensor.from_dlpack(name, values)


class TritonPythonModel:
    def initialize(self, args):
        gc.disable()  # nothing of what a runtime imports is garbage, nor is it looked through later
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        sys.path.insert(0, str(folder))  # each model has a process of its own
        runtime = importlib.import_module("runtime")
        self.session = runtime.load(
            folder / parameters["file"], int(parameters["threads"]), parameters["device"]
        )
        if hasattr(self.session, "configure"):
            self.session.configure(parameters)
        on_device = parameters["device"] == "gpu" and hasattr(self.session, "run_on_device")
        self.run = self.session.run_on_device if on_device else self.session.run
        # without a GPU no tensor need be asked where it is: there may be dozens in a request
        self.read = to_array if parameters["device"] == "gpu" else pb.Tensor.as_numpy
        self.outputs = [output["name"] for output in config["output"]]
        self.joins = config["max_batch_size"] > 0
        self.metrics, self.told = {}, {}
        if hasattr(self.session, "counters") and hasattr(pb, "MetricFamily"):
            for name in self.session.counters():
                family = pb.MetricFamily(name, f"{name} so far", pb.MetricFamily.COUNTER)
                self.metrics[name] = family, family.Metric(labels={"model": args["model_name"]})
        gc.freeze()
        gc.enable()

    def finalize(self):
        if hasattr(self.session, "close"):
            self.session.close()

    def execute(self, requests):
        """Answer every request, and tell the metrics what the session counted meanwhile."""
        answered = self.answer(requests)
        counted = self.session.counters() if self.metrics else {}
        for name, (_, metric) in self.metrics.items():
            if counted[name] > self.told.get(name, 0):
                metric.increment(counted[name] - self.told.get(name, 0))
        self.told = counted
        return answered

    def answer(self, requests):
        """Answer every request; those of a batch that fails run again one by one, so that only the
        bad ones fail.
        """
        if len(requests) > 1 and not self.joins:
            return [self.answer([request])[0] for request in requests]
        try:
            return self.run_batch(requests)
        except Exception as error:
            if len(requests) > 1:
                return [self.answer([request])[0] for request in requests]
            # never one error for several responses: Triton frees it once for each, and crashes
            failure = pb.TritonError(f"{type(error).__name__}: {error}")
            return [pb.InferenceResponse(error=failure)]

    def run_batch(self, requests):
        arrays = [
            {tensor.name(): self.read(tensor) for tensor in request.inputs()}
            for request in requests
        ]
        if len(requests) == 1:
            outputs = self.run(arrays[0])
            tensors = [to_triton(name, outputs[name]) for name in self.outputs]
            return [pb.InferenceResponse(tensors)]
        batch = {name: concatenate([inputs[name] for inputs in arrays]) for name in arrays[0]}
        outputs = self.run(batch)
        responses, start = [], 0
        for inputs in arrays:
            end = start + len(next(iter(inputs.values())))
            tensors = [to_triton(name, outputs[name][start:end]) for name in self.outputs]
            responses.append(pb.InferenceResponse(tensors))
            start = end
        return responses
