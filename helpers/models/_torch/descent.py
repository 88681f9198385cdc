"""One step of gradient descent."""

from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def descend(
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
