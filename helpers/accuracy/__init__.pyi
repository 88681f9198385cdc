from .ladder import (
    compare,
    evaluate,
    framework_reference,
    outputs_of,
    reference_outputs,
    rung,
    served_precision,
)

__all__ = [
    "compare",
    "evaluate",
    "framework_reference",
    "outputs_of",
    "reference_outputs",
    "rung",
    "served_precision",
]
