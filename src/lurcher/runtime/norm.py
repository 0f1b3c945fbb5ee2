"""RMSNorm (arXiv 1910.07467, eq. 4), forward and backward by hand. Shapes: x [S, H], weight [H]."""

from __future__ import annotations

from typing import NamedTuple

import torch

NORM_EPS = 1e-6


class SavedNorm(NamedTuple):
    """What the backward pass needs: the normalised input [S, H] and 1 / rms [S, 1]."""

    unit: torch.Tensor
    inverse_rms: torch.Tensor


class Norm:
    """weight * x / rms(x) over the last dimension. Constants are tensors made once: a Python number in a call costs more than the sum."""

    def __init__(self, weight: torch.Tensor, weight_grad: torch.Tensor) -> None:
        self._weight, self._weight_grad = weight, weight_grad
        self._eps = weight.new_full((1, 1), NORM_EPS)
        self._mean = weight.new_full((len(weight), 1), 1.0 / len(weight))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, SavedNorm]:
        """[S, H], and what backward needs."""
        inverse_rms = torch.addmm(self._eps, x * x, self._mean).rsqrt_()
        unit = x * inverse_rms
        return unit * self._weight, SavedNorm(unit, inverse_rms)

    def backward(self, grad: torch.Tensor, saved: SavedNorm, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Gradient of the input, plus `residual`'s; the weight's is added up. `grad` must be complete, not a tensor rank's part."""
        product = grad * saved.unit
        self._weight_grad.add_(product.sum(0))
        # Row means of unit * (grad * weight): the part of the gradient along the input, which normalising takes away.
        along = torch.mv(product, self._weight).unsqueeze_(1)
        across = (grad * self._weight).addcmul_(saved.unit, along, value=-1.0 / grad.shape[1])
        return across.mul_(saved.inverse_rms) if residual is None else torch.addcmul(residual, across, saved.inverse_rms)
