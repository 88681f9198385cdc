from .ladder import (
    compare,
    evaluate,
    framework_outputs,
    framework_reference,
    reference_outputs,
    served_precision,
)
from .scatter import show_agreement

__all__ = [
    "compare",
    "evaluate",
    "framework_outputs",
    "framework_reference",
    "reference_outputs",
    "served_precision",
    "show_agreement",
]
