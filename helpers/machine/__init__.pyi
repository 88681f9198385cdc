from .checks import Check, examine, this_gpu
from .preflight import obstacle
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "Check",
    "examine",
    "obstacle",
    "this_gpu",
]
