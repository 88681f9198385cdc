from .chart import show_points
from .choices import batchers, clients, described, precisions, sharings
from .noticed import (
    facts,
    frame,
    headline,
    notice_batching,
    notice_precision,
    notice_sharing,
    shown,
)
from .rounding import Rounded, draw_errors, notice_outputs, outputs_in

__all__ = [
    "Rounded",
    "batchers",
    "clients",
    "described",
    "draw_errors",
    "facts",
    "frame",
    "headline",
    "notice_batching",
    "notice_outputs",
    "notice_precision",
    "notice_sharing",
    "outputs_in",
    "precisions",
    "sharings",
    "show_points",
    "shown",
]
