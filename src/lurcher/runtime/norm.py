"""RMSNorm (arXiv 1910.07467, eq. 4), forward and backward. Shapes: x [S, H], weight [H]."""

from __future__ import annotations

from typing import NamedTuple

import torch

NORM_EPS = 1e-6


class SavedNorm(NamedTuple):
    """What the backward pass needs: the normalised input [S, H] and 1 / rms [S, 1]."""

    unit: torch.Tensor
    inverse_rms: torch.Tensor


def norm_forward(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, SavedNorm]:
    """weight * x / rms(x) over the last dimension."""
    square_sum = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    inverse_rms = torch.add(weight.new_full((), NORM_EPS), square_sum, alpha=1.0 / x.shape[1]).rsqrt_()
    unit = x * inverse_rms
    return unit * weight, SavedNorm(unit, inverse_rms)


def norm_backward(
    grad: torch.Tensor, saved: SavedNorm, weight: torch.Tensor, weight_grad: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Gradient of the input, plus `residual`'s; the weight's is added to `weight_grad`. `grad` must be complete, not a tensor rank's part."""
    product = grad * saved.unit
    weight_grad.add_(product.sum(0))
    # Row means of unit * (grad * weight): the part of the gradient along the input, which normalising takes away.
    along = torch.mv(product, weight).unsqueeze_(1)
    across = (grad * weight).addcmul_(saved.unit, along, value=-1.0 / grad.shape[1])
    return across.mul_(saved.inverse_rms) if residual is None else torch.addcmul(residual, across, saved.inverse_rms)
