"""TensorFlow's SavedModel: a Keras network as one function, run by TensorFlow.

The function's inputs and outputs carry the network's own names, which ONNX and OpenVINO keep.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "model.savedmodel"  # a folder, named as Triton's own backend wants it
SOURCES = ("tensorflow",)
PRECISIONS = {"cpu": ("fp32",), "gpu": ("fp32",)}
RUNTIME = ("tensorflow",)
SHOWN = ("TensorFlow", "TensorFlow SavedModel")
SIGNATURE = "serving_default"


class SavedModelSession:
    """A loaded signature; TensorFlow's threads are the whole process's, and the first session sets
    them.
    """

    def __init__(self, path: Path, threads: int, device: str) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        if device == "gpu" and not tf.config.list_physical_devices("GPU"):
            raise RuntimeError("TensorFlow sees no GPU here: it would take the CPU instead")
        with suppress(RuntimeError):  # after TensorFlow's first operation it is too late
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        self._tensor = tf.constant
        self._model = tf.saved_model.load(str(path))  # must live as long as its function
        self._function = self._model.signatures[SIGNATURE]

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        results = self._function(**{name: self._tensor(inputs[name]) for name in inputs})
        return {name: result.numpy() for name, result in results.items()}


def make(
    source: Any, path: Path, *, precision: str, inputs: dict[str, Any], outputs: tuple[str, ...]
) -> None:
    """Save a Keras model that takes a dict of tensors; the batch dimension is left open."""
    import tensorflow as tf

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its notes name the machine's folders

    def compute(**tensors: Any) -> dict[str, Any]:
        results = source(tensors, training=False)
        results = results if isinstance(results, (list, tuple)) else (results,)
        return dict(zip(outputs, results, strict=True))

    specs = {
        name: tf.TensorSpec((None, *array.shape[1:]), array.dtype, name)
        for name, array in inputs.items()
    }
    module = tf.Module()
    module.variables_of_network = source.variables
    module.compute = tf.function(compute)
    signature = module.compute.get_concrete_function(**specs)
    tf.saved_model.save(module, str(path), signatures={SIGNATURE: signature})


def load(path: Path, threads: int, device: str) -> SavedModelSession:
    return SavedModelSession(path, threads, device)
