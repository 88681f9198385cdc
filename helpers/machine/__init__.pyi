from .checks import Check, matches_target, run_checks, target_name, this_gpu
from .packages import BROKEN, require
from .preflight import why_lesson_unavailable, why_unavailable
from .probe import diagnose
from .provenance import COMMAND_VARIABLE

__all__ = [
    "BROKEN",
    "COMMAND_VARIABLE",
    "Check",
    "diagnose",
    "matches_target",
    "require",
    "run_checks",
    "target_name",
    "this_gpu",
    "why_lesson_unavailable",
    "why_unavailable",
]
