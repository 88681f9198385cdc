"""Embedding tables larger than memory: a hierarchical parameter server with NVIDIA's files, JSON
and tensors. It imports nothing else of the package: a model repository holds a copy of it.
"""

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Import `load` at its first use: a parameter file needs the settings alone."""
    if name == "load":
        from .session import load

        return load
    raise AttributeError(name)
