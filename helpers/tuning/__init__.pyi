from .bench import Tuning, tune
from .chart import draw_search
from .search import Search, Trial, Winner, open_study
from .space import CHECK_STAGES, PREFIX, Space, candidates, choices
from .winner import EXPERIMENT, differing, write_experiment

__all__ = [
    "CHECK_STAGES",
    "EXPERIMENT",
    "PREFIX",
    "Search",
    "Space",
    "Trial",
    "Tuning",
    "Winner",
    "candidates",
    "choices",
    "differing",
    "draw_search",
    "open_study",
    "tune",
    "write_experiment",
]
