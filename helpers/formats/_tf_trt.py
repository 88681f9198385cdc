"""TF-TRT: a SavedModel whose subgraphs TensorRT runs inside TensorFlow, made and run.

    python _tf_trt.py REQUEST.json      converts what the request names, in the request's folder

This file is a served model's runtime, and is run inside NVIDIA's TensorFlow images: it imports
nothing of this package and needs Python 3.8 or newer. TensorFlow 2.17 is the last with TensorRT
(github.com/tensorflow/tensorflow/releases/tag/v2.17.0).

On a machine without a GPU no line behind `require_driver` has been run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LAST = (2, 17)  # of TensorFlow
WORKSPACE_BYTES = 8 * 2**30
SIGNATURE = "serving_default"
_DRIVER = Path("/proc/driver/nvidia/version")


def require_driver() -> None:
    """Raise RuntimeError without a driver."""
    if not _DRIVER.exists():
        raise RuntimeError("TF-TRT needs an NVIDIA driver, and none is loaded here")


def _tensorflow() -> Any:
    """Import a TensorFlow that has TensorRT; raise RuntimeError for any other."""
    require_driver()
    import tensorflow as tf

    if tuple(int(part) for part in tf.__version__.split(".")[:2]) > LAST:
        raise RuntimeError(f"TensorFlow {tf.__version__} has no TensorRT: 2.17 is the last")
    if not tf.config.list_physical_devices("GPU"):
        raise RuntimeError("TensorFlow sees no GPU here: it would take the CPU instead")
    return tf


def build(request: dict[str, Any], folder: Path) -> None:
    """Convert the SavedModel `request["source"]` of `folder` to `request["target"]`.

    The engines are built now, for `request["profile"]`: the shapes of the largest batch; a smaller
    one runs in the same engines. Raises RuntimeError.
    """
    tf = _tensorflow()
    from tensorflow.python.compiler.tensorrt import trt_convert

    converter = trt_convert.TrtGraphConverterV2(
        input_saved_model_dir=str(folder / request["source"]),
        input_saved_model_signature_key=SIGNATURE,
        precision_mode=request["precision"].upper(),
        max_workspace_size_bytes=request["workspace_bytes"],
        use_dynamic_shape=True,
        dynamic_shape_profile_strategy="Range+Optimal",
    )
    function = converter.convert()

    def batches() -> Any:
        specs = function.structured_input_signature[1]
        for end in ("min", "max"):  # the profile reaches from the one to the other
            shapes = {name: each[end] for name, each in request["profile"].items()}
            yield {name: tf.zeros(shapes[name], specs[name].dtype) for name in shapes}

    converter.build(input_fn=batches)
    converter.save(str(folder / request["target"]))


class TfTrtSession:
    """A converted SavedModel; its inputs go to the GPU, where its subgraphs run."""

    def __init__(self, path: Path) -> None:
        tf = _tensorflow()
        self._tensor = tf.constant
        self._model = tf.saved_model.load(str(path))  # must live as long as its function
        self._function = self._model.signatures[SIGNATURE]

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        results = self._function(**{name: self._tensor(inputs[name]) for name in inputs})
        return {name: result.numpy() for name, result in results.items()}


def load(path: Path, threads: int, device: str) -> TfTrtSession:
    """Load a converted SavedModel; its work is on the GPU, so `threads` has no effect."""
    if device != "gpu":
        raise RuntimeError("TF-TRT runs on a GPU only")
    return TfTrtSession(path)


if __name__ == "__main__":
    REQUEST = Path(sys.argv[1])
    try:
        build(json.loads(REQUEST.read_text()), REQUEST.parent)
    except RuntimeError as error:
        sys.exit(str(error))
