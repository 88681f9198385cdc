from .ladder import (
    compare,
    evaluate,
    framework_outputs,
    framework_reference,
    outputs_of,
    reference_outputs,
    rung,
    served_precision,
)
from .scatter import show_agreement

__all__ = [
    "compare",
    "evaluate",
    "framework_outputs",
    "framework_reference",
    "outputs_of",
    "reference_outputs",
    "rung",
    "served_precision",
    "show_agreement",
]
