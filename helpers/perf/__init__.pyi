from .loadgen import crosscheck
from .measure import measure_offline, measure_online
from .statistics import littles_law

__all__ = [
    "crosscheck",
    "littles_law",
    "measure_offline",
    "measure_online",
]
