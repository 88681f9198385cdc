"""TorchScript by scripting: the network's Python code with its control flow, run by PyTorch."""

from pathlib import Path

from helpers.formats import Build, Source, ts_trace

FILE = ts_trace.FILE
SOURCES = ts_trace.SOURCES
PRECISIONS = ts_trace.PRECISIONS
RUNTIME = ts_trace.RUNTIME
DISPLAY_NAMES = ("PyTorch", "TorchScript Script")
load, describe = ts_trace.load, ts_trace.describe


def make(source: Source, path: Path, build: Build) -> None:
    """Save the network's own code, compiled."""
    import torch

    build.record("torch.jit.script", "network")
    ts_trace.save(source, path, build, lambda module, _: torch.jit.script(module))
