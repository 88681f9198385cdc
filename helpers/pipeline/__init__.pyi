from .clearing import clear
from .publishing import publish, publish_front
from .running import run
from .status import stage_states, targets

__all__ = [
    "clear",
    "publish",
    "publish_front",
    "run",
    "stage_states",
    "targets",
]
