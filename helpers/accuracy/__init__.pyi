from .ladder import (
    compare,
    evaluate,
    framework_reference,
    reference_outputs,
    served_precision,
)

__all__ = [
    "compare",
    "evaluate",
    "framework_reference",
    "reference_outputs",
    "served_precision",
]
