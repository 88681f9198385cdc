"""One step of gradient descent, and the line that says how far a fit has come."""

import time
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

REPORT_EVERY = 20  # steps
LARGEST_NORM = 1.0  # of a clipped gradient


@dataclass
class Descent:
    """A fit of `steps` steps, of which a line is printed now and then."""

    optimizer: Optimizer
    steps: int
    clipped: bool = False
    started: float = field(default_factory=time.perf_counter)

    def take(self, step: int, loss: Tensor, learning_rate: float) -> None:
        """Go down the gradient of `loss`, as step number `step` from 1."""
        group = self.optimizer.param_groups[0]
        group["lr"] = learning_rate
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        if self.clipped:
            clip_grad_norm_(group["params"], LARGEST_NORM)
        self.optimizer.step()
        if step % REPORT_EVERY == 0 or step == self.steps:
            seconds = time.perf_counter() - self.started
            print(f"step {step}/{self.steps}: loss {loss.item():.3f}, {seconds:.0f} s")
