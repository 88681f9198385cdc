"""TorchScript by scripting: the network's Python code is compiled with its control flow, and run by
PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.formats import Format
from helpers.formats.ts_trace import TorchScriptTrace

if TYPE_CHECKING:
    import torch


class TorchScript(TorchScriptTrace):
    SHOWN = ("PyTorch", "TorchScript Script")

    def compile(
        self, module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]
    ) -> torch.jit.ScriptModule:
        import torch

        return torch.jit.script(module)


FORMAT: Format = TorchScript()
