from .planning import plan
from .running import run

__all__ = [
    "plan",
    "run",
]
