from .checks import Check, examine, matches_target, this_gpu
from .preflight import obstacle
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "Check",
    "examine",
    "matches_target",
    "obstacle",
    "this_gpu",
]
