"""Triton's Python backend around one format's session: `model.py` of every served model.

The repository holds it next to `runtime.py`, the format's own module, or `runtime`, a package. The
requests of one call by Triton run as one batch, unless the model has no batch dimension. A
session's counters become Triton's metrics. The module imports only numpy and the backend's
utilities, so that any server can serve the repository. It supports Python 3.8, which older
releases' images have.

On a GPU, tensors stay there if the session has `run_on_device`. It takes PyTorch's tensors as well
as arrays, and its outputs return to Triton by DLPack.
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
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    import torch

    (device,) = {value.device for value in values if not isinstance(value, np.ndarray)}
    return torch.cat([torch.as_tensor(value, device=device) for value in values])


def to_triton(name, values):
    """Return an output as Triton's tensor, where it is."""
    if isinstance(values, np.ndarray):
        return pb.Tensor(name, values)
    return pb.Tensor.from_dlpack(name, values)


class TritonPythonModel:
    def initialize(self, args):
        gc.disable()  # the modules that a runtime imports are not garbage, nor searched later
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
        # without a GPU, `is_cpu` need not be called for each tensor: a request may have dozens
        self.read = to_array if parameters["device"] == "gpu" else pb.Tensor.as_numpy
        self.outputs = [output["name"] for output in config["output"]]
        self.joins = config["max_batch_size"] > 0
        self.metrics, self.reported = {}, {}
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
        """Respond to every request, and add the session's new counts to the metrics."""
        answered = self.answer(requests)
        counted = self.session.counters() if self.metrics else {}
        for name, (_, metric) in self.metrics.items():
            if counted[name] > self.reported.get(name, 0):
                metric.increment(counted[name] - self.reported.get(name, 0))
        self.reported = counted
        return answered

    def answer(self, requests):
        """Respond to every request; those of a failed batch run again one by one."""
        if len(requests) == 1 or self.joins:
            try:
                return self.run_batch(requests)
            except Exception as error:
                # never one error for several responses: Triton frees it once for each, and crashes
                if len(requests) == 1:
                    failure = pb.TritonError(f"{type(error).__name__}: {error}")
                    return [pb.InferenceResponse(error=failure)]
        return [self.answer([request])[0] for request in requests]

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
