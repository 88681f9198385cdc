from .background import RETRY_VARIABLE, retry_seconds
from .candidates import (
    Candidate,
    Comparison,
    LoadSession,
    Point,
    Variant,
    measure_interleaved,
    open_session,
    ratio_of,
    served,
)
from .changes import what_changed
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
from .command import command_line
from .interleave import Ratio
from .loadgen import crosscheck
from .offline import measure_offline
from .online import measure_online
from .operators import profile_operators
from .parity_plot import show_parity
from .peaks import highest_peaks
from .rows import Window
from .statistics import Interval, check_budget, littles_law
from .words import TOLERANCES, interval, with_intervals

__all__ = [
    "KEPT_SHARE",
    "MATCHED_SHARE",
    "MATCH_RATE",
    "RETRY_VARIABLE",
    "TOLERANCES",
    "Candidate",
    "Comparison",
    "Interval",
    "LoadSession",
    "Point",
    "Ratio",
    "Variant",
    "Window",
    "check",
    "check_budget",
    "command_line",
    "compare",
    "compute_reference",
    "crosscheck",
    "evaluate",
    "evaluate_alone",
    "evaluate_under_load",
    "evaluation_outputs",
    "highest_peaks",
    "interval",
    "littles_law",
    "measure_interleaved",
    "measure_offline",
    "measure_online",
    "open_session",
    "outputs_of",
    "profile_operators",
    "ratio_of",
    "reference_outputs",
    "retry_seconds",
    "served",
    "served_precision",
    "show_parity",
    "what_changed",
    "with_intervals",
]
