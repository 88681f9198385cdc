"""Fitting of PyTorch networks: an optimizer step, and mixed precision."""

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def optimizer_step(
    optimizer: Optimizer, loss: Tensor, learning_rate: float, largest_norm: float | None = None
) -> None:
    """Take an optimizer step for `loss`; clip the gradient's norm to `largest_norm`, if given."""
    group = optimizer.param_groups[0]
    group["lr"] = learning_rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
    if largest_norm is not None:
        clip_grad_norm_(group["params"], largest_norm)
    optimizer.step()


def mixed_precision() -> torch.autocast:
    """Return a context of matrix multiplications in bf16, if the CPU has instructions for them.
    Without these PyTorch emulates bf16, a hundred times slower than fp32 on AVX2.
    """
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_bf16)
