from .site import Link, StageState, Target, outputs_index, page, target_index

__all__ = [
    "Link",
    "StageState",
    "Target",
    "outputs_index",
    "page",
    "target_index",
]
