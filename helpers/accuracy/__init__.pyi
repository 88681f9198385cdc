from .ladder import Rung, Score, compare, compare_served, evaluate, framework_reference

__all__ = [
    "Rung",
    "Score",
    "compare",
    "compare_served",
    "evaluate",
    "framework_reference",
]
