"""What fitting a network shares: a step of gradient descent, and its products' precision."""

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def optimizer_step(
    optimizer: Optimizer, loss: Tensor, learning_rate: float, largest_norm: float | None = None
) -> None:
    """Go down the gradient of `loss`, whose norm is clipped if `largest_norm` is given."""
    group = optimizer.param_groups[0]
    group["lr"] = learning_rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
    if largest_norm is not None:
        clip_grad_norm_(group["params"], largest_norm)
    optimizer.step()


def mixed_precision() -> torch.autocast:
    """Compute products in bf16 in the block, on a processor with instructions for that. On others
    PyTorch emulates them, a hundred times slower than fp32 where there is AVX2 alone.
    """
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_bf16)
