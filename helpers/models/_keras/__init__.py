"""TensorFlow and Keras, imported late and quietly."""

import os
from importlib import import_module
from types import ModuleType
from typing import Any

Tensor = Any  # a tf.Tensor, a keras.Variable or an array: TensorFlow has no types


def tensorflow() -> ModuleType:
    """Import TensorFlow without its start-up notes."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    return import_module("tensorflow")


def keras() -> ModuleType:
    """Import Keras on TensorFlow."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    tensorflow()
    return import_module("keras")
