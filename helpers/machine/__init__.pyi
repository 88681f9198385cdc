from .checks import has_driver
from .provenance import COMMAND_VARIABLE

__all__ = [
    "COMMAND_VARIABLE",
    "has_driver",
]
