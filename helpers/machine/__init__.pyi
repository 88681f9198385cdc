from .checks import Check, examine, matches_target, this_gpu
from .preflight import contest_obstacle, obstacle
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "Check",
    "contest_obstacle",
    "examine",
    "matches_target",
    "obstacle",
    "this_gpu",
]
