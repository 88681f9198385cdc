"""TorchScript by scripting: the network's Python source is compiled, control flow included, and run
by PyTorch.
"""

from pathlib import Path
from typing import Any

from helpers.formats.ts_trace import FILE, PRECISIONS, RUNTIME, SOURCES, load, write

__all__ = ["FILE", "PRECISIONS", "RUNTIME", "SHOWN", "SOURCES", "load", "make"]

SHOWN = ("PyTorch", "TorchScript Script")


def compile_script(module: Any, arguments: tuple[Any, ...]) -> Any:
    import torch

    return torch.jit.script(module)


def make(
    source: Any, path: Path, *, precision: str, inputs: dict[str, Any], outputs: tuple[str, ...]
) -> None:
    """Script a PyTorch module."""
    write(source, path, precision, inputs, outputs, compile_script)
