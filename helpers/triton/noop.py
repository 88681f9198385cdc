"""The no-op model of an experiment: the tensors of the deployed model, and no computation.

Served by the same server through the same adapter, it shows the serving overhead of Triton, the
transport and the adapter for these tensors. Its own repository is served next to the deployed one.
"""

import json
import shutil
from math import prod
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import triton_to_np_dtype

from helpers.models import Part
from helpers.triton import noop_runtime


def write(folder: Path, deployed: Path, model: str, graph: Part, device: str) -> str:
    """Write the no-op model of `model`, which the repository `deployed` serves offline, into the
    empty `folder`; return its name. `graph` is the last part of the model.
    """
    text = (deployed / model / "configs/offline.pbtxt").read_text()
    real = text_format.Parse(text, pb.ModelConfig())
    name = f"{model}_identity"
    kind = pb.ModelInstanceGroup.KIND_GPU if device == "gpu" else pb.ModelInstanceGroup.KIND_CPU
    parameters = {"file": noop_runtime.FILE, "threads": "1", "device": device}
    if device == "gpu":
        parameters["FORCE_CPU_ONLY_INPUT_TENSORS"] = "no"
    message = pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=real.max_batch_size,
        input=real.input,
        output=real.output,
        instance_group=[pb.ModelInstanceGroup(count=1, kind=kind)],
    )
    for key, value in parameters.items():
        message.parameters[key].string_value = value
    flat = {input_name: graph.flat.get(tensor.name) for input_name, tensor in graph.inputs.items()}
    sizes = {spec.name: flat.get(spec.name) or prod(spec.dims) for spec in real.input}
    counted = next(input_name for input_name in sizes if flat.get(input_name) or not graph.flat)
    rows = 1 if graph.flat else -1
    outputs = {spec.name: (_dtype(spec.data_type), [rows, *spec.dims]) for spec in real.output}
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(message))
    shutil.copyfile(Path(__file__).with_name("adapter.py"), version / "model.py")
    shutil.copyfile(noop_runtime.__file__, version / "runtime.py")
    session = {"counted": counted, "elements": sizes[counted], "outputs": outputs}
    (version / noop_runtime.FILE).write_text(json.dumps(session, indent=1) + "\n")
    return name


def _dtype(data_type: int) -> str:
    """Return numpy's name of a type of Triton's message."""
    dtype = triton_to_np_dtype(pb.DataType.Name(data_type).removeprefix("TYPE_"))
    return str(np.dtype(dtype))
