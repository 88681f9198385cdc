from .ladder import (
    AGREED_SHARE,
    KEPT_SHARE,
    check,
    compare,
    compute_reference,
    evaluate,
    evaluate_alone,
    evaluate_under_load,
    evaluation_outputs,
    outputs_of,
    reference_outputs,
    served_precision,
)
from .scatter import show_parity

__all__ = [
    "AGREED_SHARE",
    "KEPT_SHARE",
    "check",
    "compare",
    "compute_reference",
    "evaluate",
    "evaluate_alone",
    "evaluate_under_load",
    "evaluation_outputs",
    "outputs_of",
    "reference_outputs",
    "served_precision",
    "show_parity",
]
