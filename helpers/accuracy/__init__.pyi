from .ladder import (
    AGREED_SHARE,
    KEPT_SHARE,
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
    "AGREED_SHARE",
    "KEPT_SHARE",
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
