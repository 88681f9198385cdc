from .clearing import clear
from .publishing import publish, publish_front, stage_states, targets
from .running import run
from .tuning import tune

__all__ = [
    "clear",
    "publish",
    "publish_front",
    "run",
    "stage_states",
    "targets",
    "tune",
]
