from .checks import has_driver
from .gpu_checks import this_gpu
from .provenance import COMMAND_VARIABLE, gpu_in_words

__all__ = [
    "COMMAND_VARIABLE",
    "gpu_in_words",
    "has_driver",
    "this_gpu",
]
