from .analyzer import COMPONENTS
from .measure import Measurement, measure_offline, measure_online
from .statistics import littles_law

__all__ = [
    "COMPONENTS",
    "Measurement",
    "littles_law",
    "measure_offline",
    "measure_online",
]
