"""TensorFlow and Keras, imported late and quietly."""

import os
from types import ModuleType
from typing import Any

Tensor = Any  # a tf.Tensor, a keras.Variable or an array: TensorFlow has no types


def tensorflow() -> Any:
    """Import TensorFlow without its start-up notes."""
    _quieten()
    import tensorflow

    return tensorflow


def keras() -> Any:
    """Import Keras on TensorFlow."""
    _quieten()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    module: ModuleType = keras
    return module


def _quieten() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
