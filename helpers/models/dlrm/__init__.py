"""DLRM: what is its own, behind the names of `helpers.models.Model`."""

from helpers.models._criteo.model import (
    BATCH,
    FRAMEWORK,
    GENERATED,
    METRICS,
    RECIPE,
    VARIANTS,
    build,
    inputs,
    open_dataset,
    outputs,
    prepare_checkpoint,
    prepare_dataset,
)

__all__ = [
    "BATCH",
    "BOUNDS",
    "FRAMEWORK",
    "GENERATED",
    "METRICS",
    "RECIPE",
    "TITLE",
    "VARIANTS",
    "build",
    "inputs",
    "open_dataset",
    "outputs",
    "prepare_checkpoint",
    "prepare_dataset",
]

TITLE = "DLRM"
# 3 to 4 times the largest differences measured over 64 samples of each generated set, on a CPU
# with AVX-512 and bf16: ONNX Runtime and OpenVINO at fp32 1.3e-6 and 2.2e-7 (TensorFlow none),
# OpenVINO at bf16 7.6e-3 and 2.3e-3; NumPy, weights and layers rounded to fp16, 1.3e-3 and 5.1e-4
BOUNDS = {"fp32": (5e-6, 8e-7), "bf16": (0.03, 0.009), "fp16": (0.005, 0.002)}
