from .checks import (
    KEPT_SHARE,
    MATCH_RATE,
    MATCHED_SHARE,
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
from .parity_plot import show_parity

__all__ = [
    "KEPT_SHARE",
    "MATCHED_SHARE",
    "MATCH_RATE",
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
