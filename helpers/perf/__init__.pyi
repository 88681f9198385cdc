from .loadgen import crosscheck
from .lookups import show_passes
from .offline import measure_offline
from .online import measure_online
from .rows import Window
from .statistics import judge_budget, littles_law
from .words import BOUNDS, interval, with_intervals

__all__ = [
    "BOUNDS",
    "Window",
    "crosscheck",
    "interval",
    "judge_budget",
    "littles_law",
    "measure_offline",
    "measure_online",
    "show_passes",
    "with_intervals",
]
