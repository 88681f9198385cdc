from .checks import Check, examine, matches_target, target_name, this_gpu
from .packages import BROKEN, require
from .preflight import compare_obstacle, obstacle
from .probe import explained
from .provenance import COMMAND_VARIABLE

__all__ = [
    "BROKEN",
    "COMMAND_VARIABLE",
    "Check",
    "compare_obstacle",
    "examine",
    "explained",
    "matches_target",
    "obstacle",
    "require",
    "target_name",
    "this_gpu",
]
