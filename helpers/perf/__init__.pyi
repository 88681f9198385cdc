from .background import PATIENCE_VARIABLE, patience
from .changes import what_changed
from .command import command_line
from .compare import (
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
from .interleave import Ratio
from .loadgen import crosscheck
from .offline import measure_offline
from .online import measure_online
from .operators import profile_operators
from .peaks import highest_peaks
from .rows import Window
from .statistics import Interval, judge_budget, littles_law
from .words import BOUNDS, interval, with_intervals

__all__ = [
    "BOUNDS",
    "PATIENCE_VARIABLE",
    "Candidate",
    "Comparison",
    "Interval",
    "LoadSession",
    "Point",
    "Ratio",
    "Variant",
    "Window",
    "command_line",
    "crosscheck",
    "highest_peaks",
    "interval",
    "judge_budget",
    "littles_law",
    "measure_interleaved",
    "measure_offline",
    "measure_online",
    "open_session",
    "patience",
    "profile_operators",
    "ratio_of",
    "served",
    "what_changed",
    "with_intervals",
]
