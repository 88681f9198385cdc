from .ladder import (
    compare,
    compare_served,
    evaluate,
    framework_reference,
    reference_outputs,
    served_precision,
)

__all__ = [
    "compare",
    "compare_served",
    "evaluate",
    "framework_reference",
    "reference_outputs",
    "served_precision",
]
