from .chart import show_points
from .choices import batchers, clients, described, precisions, sharings
from .noticed import (
    facts,
    frame,
    headline,
    notice_batching,
    notice_instances,
    notice_precision,
    shown,
)
from .rounding import PrecisionResult, compare_precisions, draw_errors, notice_outputs

__all__ = [
    "PrecisionResult",
    "batchers",
    "clients",
    "compare_precisions",
    "described",
    "draw_errors",
    "facts",
    "frame",
    "headline",
    "notice_batching",
    "notice_instances",
    "notice_outputs",
    "notice_precision",
    "precisions",
    "sharings",
    "show_points",
    "shown",
]
