"""Load files in an old runtime and run them, as Triton's backends do; for Python 3.7 and newer.

    python load.py REQUEST.json

The request names `kind`, `file`, `inputs` (an .npz of all samples), `outputs` (where the results
go) and `batch`, or 0 for all at once. The last line on stdout is the version of the runtime.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np


def onnxruntime(file):
    import onnxruntime as runtime

    runtime.set_default_logger_severity(3)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch):
        results = session.run(names, batch)
        return {name: results[place] for place, name in enumerate(names)}

    return runtime, run


def openvino(file):
    import openvino as runtime

    # an fp32 file in fp32, also on a processor with bf16
    model = runtime.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(batch):
        results = model(batch)
        return {output.get_any_name(): np.array(results[output]) for output in model.outputs}

    return runtime, run


def torch(file):
    """Arguments are matched by their names, as Triton's backend does."""
    import torch as runtime

    module = runtime.jit.load(file)
    names = [argument.name for argument in module.forward.schema.arguments[1:]]

    def run(batch):
        with runtime.no_grad():
            results = module(*(runtime.from_numpy(batch[name]) for name in names))
        results = results if isinstance(results, tuple) else (results,)
        return {str(place): result.numpy() for place, result in enumerate(results)}

    return runtime, run


def tensorflow(file):
    """As a session, like Triton's backend: it loads a SavedModel by TensorFlow's C interface.

    That restores the variables of every SavedModel, and Python's loader only TensorFlow 1's.
    """
    import tensorflow as runtime

    v1 = runtime.compat.v1
    session = v1.Session(graph=runtime.Graph())
    with session.graph.as_default():
        loaded = v1.saved_model.load(session, ["serve"], file)
    variables, saver = str(Path(file) / "variables/variables"), loaded.saver_def
    if Path(variables + ".index").exists():
        session.run(saver.restore_op_name, {saver.filename_tensor_name: variables})
    signature = loaded.signature_def["serving_default"]
    inputs = {name: each.name for name, each in signature.inputs.items()}
    fetched = {name: each.name for name, each in signature.outputs.items()}
    return runtime, lambda batch: session.run(fetched, {inputs[k]: batch[k] for k in batch})


class Tensor:
    """Triton's tensor in this host's memory."""

    def __init__(self, name, values):
        self._name, self._values = name, values

    def name(self):
        return self._name

    def is_cpu(self):
        return True

    def as_numpy(self):
        return self._values


class Response:
    def __init__(self, tensors=(), error=None):
        self.tensors, self.error = tensors, error


def adapter(file):
    """The package's Python backend with a stand-in for Triton's module; `file` is a version."""
    utilities = types.ModuleType("triton_python_backend_utils")
    utilities.Tensor, utilities.InferenceResponse = Tensor, Response
    utilities.TritonError = RuntimeError
    sys.modules[utilities.__name__] = utilities
    version = Path(file)
    spec = importlib.util.spec_from_file_location("model", str(version / "model.py"))
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    served = model.TritonPythonModel()
    given = {"model_config": (version / "config.json").read_text(), "model_version": version.name}
    served.initialize({"model_repository": str(version.parent), **given})

    def run(batch):
        tensors = [Tensor(name, values) for name, values in batch.items()]
        (response,) = served.execute([types.SimpleNamespace(inputs=lambda: tensors)])
        if response.error:
            raise response.error
        return {each.name(): each.as_numpy() for each in response.tensors}

    return np, run


KINDS = {each.__name__: each for each in (onnxruntime, openvino, torch, tensorflow, adapter)}


def main(request):
    runtime, run = KINDS[request["kind"]](request["file"])
    if request["outputs"]:
        with np.load(request["inputs"]) as file:
            inputs = dict(file)
        size, found = len(next(iter(inputs.values()))), []
        step = request["batch"]
        for start in range(0, size, step) if step else ():
            some = {name: values[start : start + step] for name, values in inputs.items()}
            found.append(run(some))
        found = found or [run(inputs)]
        joined = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        np.savez(request["outputs"], **joined)
    print(runtime.__version__)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
