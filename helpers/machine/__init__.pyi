from .checks import Check, matches_target, run_checks, target_name, this_gpu
from .packages import BROKEN, require
from .preflight import compare_obstacle, obstacle
from .probe import diagnose
from .provenance import COMMAND_VARIABLE

__all__ = [
    "BROKEN",
    "COMMAND_VARIABLE",
    "Check",
    "compare_obstacle",
    "diagnose",
    "matches_target",
    "obstacle",
    "require",
    "run_checks",
    "target_name",
    "this_gpu",
]
