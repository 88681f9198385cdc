from .checks import Check, examine, this_gpu
from .preflight import obstacle
from .processor import instructions
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "Check",
    "examine",
    "instructions",
    "obstacle",
    "this_gpu",
]
