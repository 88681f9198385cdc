from .ladder import compare, compare_served, evaluate, framework_reference

__all__ = ["compare", "compare_served", "evaluate", "framework_reference"]
