from .checks import Check, examine
from .gpu import has_driver
from .gpu_checks import this_gpu
from .preflight import obstacle
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "Check",
    "examine",
    "has_driver",
    "obstacle",
    "this_gpu",
]
