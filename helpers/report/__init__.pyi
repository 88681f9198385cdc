from .site import Link, StageState, Target, has_links, outputs_index, page, target_index

__all__ = [
    "Link",
    "StageState",
    "Target",
    "has_links",
    "outputs_index",
    "page",
    "target_index",
]
