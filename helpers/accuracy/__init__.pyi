from .ladder import compare, evaluate, framework_reference

__all__ = ["compare", "evaluate", "framework_reference"]
