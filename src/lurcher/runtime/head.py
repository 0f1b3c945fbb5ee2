"""The model's two ends, cut by vocabulary rows: the embedding, and the output head with its loss.

Padding rows, behind the 257 real ones, never take part: they get no logit, and so neither probability nor gradient.
Shapes: S tokens, H hidden, V this rank's real vocabulary rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lurcher.runtime.context import Context
from lurcher.runtime.norm import SavedNorm, norm_backward, norm_forward
from lurcher.runtime.shapes import VOCAB_SIZE
from lurcher.runtime.storage import Storage
from lurcher.runtime.tensor_parallel import TensorGroup


class LocalRows(NamedTuple):
    """Where some tokens lie among a rank's rows: `inside` says whether, `row` where; row 0 stands in for those outside."""

    row: torch.Tensor
    inside: torch.Tensor


class VocabularyRows:
    """This rank's rows of a matrix by vocabulary, without the padding."""

    def __init__(self, storage: Storage, name: str) -> None:
        held = next(h for h in storage.held if h.spec.name == name)
        block = held.spec.atom_shape[0]
        self._first = held.first * block
        num_rows = min(held.end * block, VOCAB_SIZE) - self._first
        self.weight = storage.weight[name].flatten(0, 1)[:num_rows]
        self.weight_t = self.weight.t()
        self.grad = storage.weight_grad[name].flatten(0, 1)[:num_rows]

    def locate(self, tokens: torch.Tensor) -> LocalRows:
        """Local rows of tokens [S]."""
        row = tokens - self._first
        inside = (row >= 0).logical_and_(row < len(self.weight))
        return LocalRows(row.mul_(inside), inside)


class Embedding:
    """Tokens to vectors; each rank looks up its own rows, the sum puts them together."""

    def __init__(self, storage: Storage, group: TensorGroup) -> None:
        self._group = group
        self._rows = VocabularyRows(storage, "embed")

    def forward(self, context: Context) -> torch.Tensor:
        """[S, H], complete."""
        where = self._rows.locate(context.tokens)
        return self._group.all_reduce(self._rows.weight[where.row].mul_(where.inside.unsqueeze(1)))

    def backward(self, grad: torch.Tensor, context: Context) -> None:
        """Add the rows' gradients; needs no sum, for `grad` [S, H] is complete."""
        where = self._rows.locate(context.tokens)
        self._rows.grad.index_add_(0, where.row, grad * where.inside.unsqueeze(1))


class SavedHead(NamedTuple):
    """From forward to backward: normalised input, its norm, exp(logit - local maximum) [S, V], what makes them probabilities [S]."""

    normed: torch.Tensor
    norm: SavedNorm
    exponentials: torch.Tensor
    factor: torch.Tensor
    where: LocalRows


class Head:
    """Final norm, logits and mean cross-entropy over the micro-batch's tokens, with one sum in each direction.

    Every rank reduces its own columns to three numbers a token (maximum, sum of exponentials, target's logit); the ranks
    exchange these in one collective and put the soft-max together alike.
    """

    def __init__(self, storage: Storage, name: str, group: TensorGroup) -> None:
        self._group = group
        self._norm, self._norm_grad = storage.weight["final_norm"], storage.weight_grad["final_norm"]
        self._rows = VocabularyRows(storage, name)

    def forward(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, SavedHead]:
        """x [S, H] to the mean loss, a scalar that is equal on all ranks of the stage."""
        normed, saved_norm = norm_forward(x, self._norm)
        logits = torch.mm(normed, self._rows.weight_t)
        where = self._rows.locate(context.targets)
        target = logits.gather(1, where.row.unsqueeze(1)).squeeze(1).mul_(where.inside)
        local_max = logits.amax(1)
        exponentials = logits.sub_(local_max.unsqueeze(1)).exp_()
        parts = self._group.all_gather(torch.stack((local_max, exponentials.sum(1), target)))
        highest = parts[:, 0].amax(0)
        total = (parts[:, 1] * (parts[:, 0] - highest).exp_()).sum(0)
        loss = (total.log() + highest - parts[:, 2].sum(0)).mean()
        factor = (local_max - highest).exp_().div_(total)
        return loss, SavedHead(normed, saved_norm, exponentials, factor, where)

    def backward(self, saved: SavedHead, weight: float) -> torch.Tensor:
        """Gradient of x [S, H] for `weight` times the loss."""
        per_token = weight / len(saved.factor)
        logits_grad = saved.exponentials.mul_(saved.factor.mul_(per_token).unsqueeze(1))
        row, inside = saved.where
        logits_grad.scatter_add_(1, row.unsqueeze(1), inside.to(logits_grad.dtype).mul_(-per_token).unsqueeze(1))
        self._rows.grad.addmm_(logits_grad.t(), saved.normed)
        normed_grad = self._group.all_reduce(torch.mm(logits_grad, self._rows.weight))
        return norm_backward(normed_grad, saved.norm, self._norm, self._norm_grad)
