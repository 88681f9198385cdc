from .analyzer import COMPONENTS
from .measure import measure_offline, measure_online
from .statistics import littles_law

__all__ = [
    "COMPONENTS",
    "littles_law",
    "measure_offline",
    "measure_online",
]
