from .checks import Check, examine, this_gpu
from .gpu import has_driver
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
