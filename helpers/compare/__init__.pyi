from .evaluation import Tuning, tune
from .findings import (
    facts,
    frame,
    headline,
    notice_batching,
    notice_instances,
    notice_precision,
    shown,
)
from .lesson_chart import show_points
from .rounding import PrecisionResult, compare_precisions, draw_errors, notice_outputs
from .search import Search, Trial, Winner, open_study
from .search_chart import draw_search
from .space import CHECK_STAGES, PREFIX, Space, candidates, choices
from .variants import batchers, clients, described, precisions, sharings
from .winner import EXPERIMENT, differing, write_experiment

__all__ = [
    "CHECK_STAGES",
    "EXPERIMENT",
    "PREFIX",
    "PrecisionResult",
    "Search",
    "Space",
    "Trial",
    "Tuning",
    "Winner",
    "batchers",
    "candidates",
    "choices",
    "clients",
    "compare_precisions",
    "described",
    "differing",
    "draw_errors",
    "draw_search",
    "facts",
    "frame",
    "headline",
    "notice_batching",
    "notice_instances",
    "notice_outputs",
    "notice_precision",
    "open_study",
    "precisions",
    "sharings",
    "show_points",
    "shown",
    "tune",
    "write_experiment",
]
