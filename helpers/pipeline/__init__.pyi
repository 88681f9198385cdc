from .clearing import clear
from .planning import plan
from .publishing import publish, publish_front
from .running import run
from .status import stage_states, targets

__all__ = [
    "clear",
    "plan",
    "publish",
    "publish_front",
    "run",
    "stage_states",
    "targets",
]
