from .answers import Answer, answers_of
from .site import (
    Link,
    StageState,
    Target,
    background,
    counts,
    has_links,
    outputs_index,
    page,
    target_index,
)

__all__ = [
    "Answer",
    "Link",
    "StageState",
    "Target",
    "answers_of",
    "background",
    "counts",
    "has_links",
    "outputs_index",
    "page",
    "target_index",
]
