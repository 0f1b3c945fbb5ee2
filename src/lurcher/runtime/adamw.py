"""AdamW with decoupled weight decay (arXiv 1711.05101, algorithm 2) and clipping by the global norm, on flat tensors.

Equal to torch.optim.AdamW after torch.nn.utils.clip_grad_norm_: same formulas, same epsilon, in the same order.
"""

from __future__ import annotations

import math

from lurcher.config import OptimSection
from lurcher.runtime.storage import Storage

CLIP_EPS = 1e-6
"""Added to the norm by torch's clip_grad_norm_."""


class AdamW:
    """The optimizer of one rank. `num_steps` counts the steps taken: all tensors share it."""

    def __init__(self, section: OptimSection, storage: Storage, num_steps: int = 0) -> None:
        self._section = section
        self._storage = storage
        self.num_steps = num_steps

    def adopt(self, storage: Storage, num_steps: int) -> None:
        """Go on with another storage, whose moments have come along, and which has seen so many steps: the same on every rank."""
        self._storage, self.num_steps = storage, num_steps

    def learning_rate(self, iteration: int) -> float:
        """Linear warm-up, then constant: a function of the iteration only, never of the layout."""
        warmup = self._section.warmup_iterations
        return self._section.lr * (min(1.0, (iteration + 1) / warmup) if warmup > 0 else 1.0)

    def step(self, iteration: int, grad_norm: float) -> None:
        """Clip the gradients, move the moments and the parameters; only matrices decay."""
        section, state = self._section, self._storage
        self.num_steps += 1
        lr = self.learning_rate(iteration)
        grad = state.grad.mul_(min(1.0, section.clip_norm / (grad_norm + CLIP_EPS)))
        state.param[: state.num_split].mul_(1.0 - lr * section.weight_decay)
        state.exp_avg.lerp_(grad, 1.0 - section.beta1)
        state.exp_avg_sq.mul_(section.beta2).addcmul_(grad, grad, value=1.0 - section.beta2)
        correction1 = 1.0 - section.beta1**self.num_steps
        correction2 = 1.0 - section.beta2**self.num_steps
        denominator = state.exp_avg_sq.sqrt().div_(math.sqrt(correction2)).add_(section.eps)
        state.param.addcdiv_(state.exp_avg, denominator, value=-lr / correction1)
