from .site import Link, StageCell, Target

__all__ = [
    "Link",
    "StageCell",
    "Target",
]
