"""DCNv2: what is its own, behind the names of `helpers.models.Model`."""

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

TITLE = "DCNv2"
# 3 to 4 times the largest differences measured over 64 samples of each generated set, on a CPU
# with AVX-512 and bf16: ONNX Runtime and OpenVINO at fp32 2.7e-6 and 9.1e-7 (TensorFlow none),
# OpenVINO at bf16 1.3e-2 and 4.1e-3; NumPy, weights and layers rounded to fp16, 3.8e-3 and 1.2e-3
BOUNDS = {"fp32": (1e-5, 3.5e-6), "bf16": (0.05, 0.015), "fp16": (0.015, 0.004)}
