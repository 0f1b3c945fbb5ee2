"""One tensor rank's part of a decoder layer: two half-layers, attention and feed-forward, each forward and backward by hand.

No autograd: a half-layer is few calls, its backward pass is written out, and so it is known which sum is a chunk's last.
Shapes: S tokens, H hidden, G local KV groups, Q query heads of a group, D size of a head, F local columns of the FFN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lurcher.runtime.context import Context
from lurcher.runtime.norm import Norm, SavedNorm
from lurcher.runtime.storage import Storage
from lurcher.runtime.tensor_parallel import TensorGroup

SUMS_PER_LAYER = 2
"""Tensor collectives of a layer in each direction, one a half-layer."""


class SavedAttention(NamedTuple):
    """From forward to backward: normalised input, its norm, turned q, k and v [G, Q+2, S, D], probabilities, heads' output [S, G*Q*D]."""

    normed: torch.Tensor
    norm: SavedNorm
    heads: torch.Tensor
    probabilities: torch.Tensor
    output: torch.Tensor


class Attention:
    """x + attention(norm(x)), causal inside each document, with grouped queries; this rank's KV groups only."""

    def __init__(self, storage: Storage, layer: int, group: TensorGroup) -> None:
        name = f"layers.{layer}.attn"
        self._group = group
        self._norm = Norm(storage.weight[f"{name}.norm"], storage.weight_grad[f"{name}.norm"])
        wqkv, wo = storage.weight[f"{name}.wqkv"], storage.weight[f"{name}.wo"]
        self._wqkv, self._wqkv_grad = wqkv.flatten(0, 1), storage.weight_grad[f"{name}.wqkv"].flatten(0, 1)
        self._wo, self._wo_grad = wo.flatten(0, 1), storage.weight_grad[f"{name}.wo"].flatten(0, 1)
        self._wqkv_t, self._wo_t = self._wqkv.t(), self._wo.t()
        self._groups = len(wqkv)
        self._head_dim = (wqkv.shape[1] - wo.shape[1]) // 2  # a group's rows: (Q + 2) D of the one, Q D of the other
        self._queries = wo.shape[1] // self._head_dim

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, SavedAttention]:
        """x [S, H] to [S, H]."""
        normed, saved_norm = self._norm.forward(x)
        projected = torch.mm(normed, self._wqkv_t)
        self._turn(projected, context.rotation)
        heads = projected.view(len(x), self._groups, self._queries + 2, self._head_dim).permute(1, 2, 0, 3).contiguous()
        query, key, value = self._parts(heads)
        probabilities = torch.baddbmm(context.mask, query, key.transpose(1, 2), alpha=context.scale).softmax(-1)
        mixed = torch.bmm(probabilities, value).view(self._groups, self._queries, len(x), self._head_dim)
        output = mixed.permute(2, 0, 1, 3).reshape(len(x), -1)
        result = self._group.all_reduce(torch.mm(output, self._wo)).add_(x)
        return result, SavedAttention(normed, saved_norm, heads, probabilities, output)

    def backward(self, grad: torch.Tensor, saved: SavedAttention, context: Context) -> torch.Tensor:
        """Gradient of the result to gradient of x, both [S, H] and complete on every rank."""
        shape = (len(grad), self._groups, self._queries, self._head_dim)
        query, key, value = self._parts(saved.heads)
        mixed_grad = torch.mm(grad, self._wo_t).view(shape).permute(1, 2, 0, 3).reshape(query.shape)
        self._wo_grad.addmm_(saved.output.t(), grad)
        probabilities_grad = torch.bmm(mixed_grad, value.transpose(1, 2))
        scores_grad = torch._softmax_backward_data(probabilities_grad, saved.probabilities, -1, grad.dtype)
        query_grad = torch.bmm(scores_grad, key).view(self._groups, self._queries, len(grad), self._head_dim)
        key_grad = torch.bmm(scores_grad.transpose(1, 2), query)
        value_grad = torch.bmm(saved.probabilities.transpose(1, 2), mixed_grad)
        heads_grad = torch.cat((query_grad, key_grad.unsqueeze(1), value_grad.unsqueeze(1)), dim=1)
        projected_grad = heads_grad.permute(2, 0, 1, 3).reshape(len(grad), -1)
        self._turn(projected_grad, context.unrotation)
        self._wqkv_grad.addmm_(projected_grad.t(), saved.normed)
        normed_grad = self._group.all_reduce(torch.mm(projected_grad, self._wqkv))
        return self._norm.backward(normed_grad, saved.norm, residual=grad)

    def _turn(self, projected: torch.Tensor, factors: torch.Tensor) -> None:
        """Multiply neighbouring elements of [S, G * (Q+2) * D] as complex pairs by `factors` [S, 1, (Q+2) * D/2], in place."""
        pairs = projected.view(len(projected), self._groups, -1, 2)
        torch.view_as_complex(pairs).mul_(factors)

    def _parts(self, heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of heads [G, Q+2, S, D]: query [G, Q*S, D], key and value [G, S, D]."""
        queries = self._queries
        return heads[:, :queries].flatten(1, 2), heads[:, queries], heads[:, queries + 1]


class SavedFeedForward(NamedTuple):
    """From forward to backward: normalised input, its norm, gate and up [2, S, B, block], silu(gate), and the product with up [S, F]."""

    normed: torch.Tensor
    norm: SavedNorm
    gate_up: torch.Tensor
    opened: torch.Tensor
    active: torch.Tensor


class FeedForward:
    """x + SwiGLU(norm(x)) (arXiv 2002.05202, eq. 6 without biases); this rank's FFN blocks only."""

    def __init__(self, storage: Storage, layer: int, group: TensorGroup) -> None:
        name = f"layers.{layer}.ffn"
        self._group = group
        self._norm = Norm(storage.weight[f"{name}.norm"], storage.weight_grad[f"{name}.norm"])
        down = storage.weight[f"{name}.down"]
        self._num_blocks, self._block = down.shape[0], down.shape[1]
        self._down, self._down_grad = down.flatten(0, 1), storage.weight_grad[f"{name}.down"].flatten(0, 1)
        self._gate_up = storage.weight[f"{name}.gate_up"].flatten(0, 1)
        self._gate_up_grad = storage.weight_grad[f"{name}.gate_up"].flatten(0, 1)
        self._down_t, self._gate_up_t = self._down.t(), self._gate_up.t()

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, SavedFeedForward]:
        """x [S, H] to [S, H]."""
        normed, saved_norm = self._norm.forward(x)
        # Gate and up apart and contiguous: on strided halves the activation takes five times as long.
        by_block = torch.mm(normed, self._gate_up_t).view(len(x), self._num_blocks, 2, self._block)
        gate_up = by_block.permute(2, 0, 1, 3).contiguous()
        opened = torch.nn.functional.silu(gate_up[0])
        active = (opened * gate_up[1]).view(len(x), -1)
        result = self._group.all_reduce(torch.mm(active, self._down)).add_(x)
        return result, SavedFeedForward(normed, saved_norm, gate_up, opened, active)

    def backward(self, grad: torch.Tensor, saved: SavedFeedForward, context: Context) -> torch.Tensor:
        """Gradient of the result to gradient of x, both [S, H] and complete on every rank."""
        gate, up = saved.gate_up
        active_grad = torch.mm(grad, self._down_t).view(gate.shape)
        self._down_grad.addmm_(saved.active.t(), grad)
        up_grad = active_grad * saved.opened
        gate_grad = torch.ops.aten.silu_backward(active_grad.mul_(up), gate)
        gate_up_grad = torch.stack((gate_grad, up_grad), dim=2).view(len(grad), -1)
        self._gate_up_grad.addmm_(gate_up_grad.t(), saved.normed)
        normed_grad = self._group.all_reduce(torch.mm(gate_up_grad, self._gate_up))
        return self._norm.backward(normed_grad, saved.norm, residual=grad)
