from .answers import Answer, answers_of
from .performance import (
    notice_offline,
    notice_online,
    show_offline,
    show_online,
    show_rates,
    show_request,
)
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
    "notice_offline",
    "notice_online",
    "outputs_index",
    "page",
    "show_offline",
    "show_online",
    "show_rates",
    "show_request",
    "target_index",
]
