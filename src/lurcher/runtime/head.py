"""The model's two ends, cut by vocabulary rows: the embedding, and the output head with its loss.

Padding rows, behind the 257 real ones, never take part: they get no logit, and so neither probability nor gradient.
Shapes: S tokens, H hidden, V this rank's real vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from lurcher.runtime.context import Context, LocalRows
from lurcher.runtime.norm import Norm, SavedNorm
from lurcher.runtime.shapes import VOCAB_SIZE, Held
from lurcher.runtime.storage import Storage
from lurcher.runtime.tensor_parallel import TensorGroup


def vocabulary_rows(held: Sequence[Held]) -> range:
    """The real rows of a matrix by vocabulary that a rank holds, without the padding; the same in embedding and head. Empty without either."""
    for one in held:
        if one.spec.name in ("embed", "head"):
            block = one.spec.atom_shape[0]
            return range(one.first * block, max(one.first * block, min(one.end * block, VOCAB_SIZE)))
    return range(0)


class VocabularyMatrix:
    """This rank's real rows of one matrix by vocabulary [V, H], and their gradient."""

    def __init__(self, storage: Storage, name: str) -> None:
        num_rows = len(vocabulary_rows(storage.held))
        self.weight = storage.weight[name].flatten(0, 1)[:num_rows]
        self.weight_t = self.weight.t()
        self.grad = storage.weight_grad[name].flatten(0, 1)[:num_rows]


class Embedding:
    """Tokens to vectors; each rank looks up its own rows, the sum puts them together."""

    def __init__(self, storage: Storage, group: TensorGroup) -> None:
        self._group = group
        self._matrix = VocabularyMatrix(storage, "embed")

    def forward(self, context: Context) -> torch.Tensor:
        """[S, H], complete."""
        row, inside = context.tokens
        return self._group.all_reduce(self._matrix.weight.index_select(0, row).mul_(inside))

    def backward(self, grad: torch.Tensor, context: Context) -> None:
        """Add the rows' gradients; needs no sum, for `grad` [S, H] is complete."""
        row, inside = context.tokens
        self._matrix.grad.index_add_(0, row, grad * inside)


class SavedHead(NamedTuple):
    """From forward to backward: normalised input, its norm, logits [S, V], every rank's part of the loss [size, S, 2], targets."""

    normed: torch.Tensor
    norm: SavedNorm
    logits: torch.Tensor
    parts: torch.Tensor
    targets: LocalRows


class Head:
    """Final norm, logits and mean cross-entropy over the micro-batch's tokens, with one collective in each direction.

    Every rank reduces its own columns to two numbers a token, log-sum-exp and target's logit. The ranks exchange these at the
    end of forward, and put them together alike in backward: what nobody waits for need not be done before the exchange.
    """

    def __init__(self, storage: Storage, name: str, group: TensorGroup) -> None:
        self._group = group
        self._norm = Norm(storage.weight["final_norm"], storage.weight_grad["final_norm"])
        self._matrix = VocabularyMatrix(storage, name)

    def forward(self, x: torch.Tensor, context: Context) -> SavedHead:
        """Everything about x [S, H] that the loss needs."""
        normed, saved_norm = self._norm.forward(x)
        logits = torch.mm(normed, self._matrix.weight_t)
        row, inside = context.targets
        target = logits.gather(1, row.unsqueeze(1)).mul_(inside)
        parts = self._group.all_gather(torch.cat((logits.logsumexp(1, keepdim=True), target), 1))
        return SavedHead(normed, saved_norm, logits, parts, context.targets)

    def backward(self, saved: SavedHead, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient of x [S, H] for `weight` times the mean loss, and that loss: a scalar, equal on all ranks of the stage."""
        log_total = saved.parts[:, :, :1].logsumexp(0)
        loss = (log_total - saved.parts[:, :, 1:].sum(0)).mean()
        per_token = weight / len(saved.logits)
        logits_grad = (saved.logits - log_total).exp_().mul_(per_token)
        row, inside = saved.targets
        logits_grad.scatter_add_(1, row.unsqueeze(1), inside * -per_token)
        self._matrix.grad.addmm_(logits_grad.t(), saved.normed)
        normed_grad = self._group.all_reduce(torch.mm(logits_grad, self._matrix.weight))
        return self._norm.backward(normed_grad, saved.norm), loss
