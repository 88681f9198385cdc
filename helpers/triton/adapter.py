"""Triton's Python backend around one format's session: `model.py` of every served model.

The repository holds it beside `runtime.py`, the format's own module. All the requests that Triton
hands over in one call run as one batch. It imports numpy and the backend's utilities only, so that
the repository can be served anywhere.
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


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        runtime = load_runtime(folder / "runtime.py")
        self.session = runtime.load(
            folder / parameters["file"], int(parameters["threads"]), parameters["device"]
        )
        self.outputs = [output["name"] for output in config["output"]]

    def execute(self, requests):
        arrays = [
            {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            for request in requests
        ]
        sizes = [len(next(iter(inputs.values()))) for inputs in arrays]
        batch = arrays[0]
        if len(arrays) > 1:
            batch = {name: np.concatenate([inputs[name] for inputs in arrays]) for name in batch}
        try:
            outputs = self.session.run(batch)
        except Exception as error:  # every request of the batch must get an answer
            failure = pb.TritonError(f"{type(error).__name__}: {error}")
            return [pb.InferenceResponse(error=failure) for _ in requests]
        ends = np.cumsum(sizes)
        return [
            pb.InferenceResponse(
                [pb.Tensor(name, outputs[name][end - size : end]) for name in self.outputs]
            )
            for size, end in zip(sizes, ends, strict=True)
        ]
