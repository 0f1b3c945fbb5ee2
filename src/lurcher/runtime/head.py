"""The model's two ends, cut by vocabulary rows: the embedding, and the output head with its loss.

Padding rows, behind the 257 real ones, never take part: they get no logit, and so neither probability nor gradient.
Shapes: S tokens, H hidden, V this rank's real vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lurcher.runtime.context import Context
from lurcher.runtime.norm import Norm
from lurcher.runtime.shapes import VOCAB_SIZE, Held
from lurcher.runtime.storage import Storage
from lurcher.runtime.tensor_parallel import TensorGroup

HEAD_COLLECTIVES = 2
"""Of the head's pass: the parts of the loss are gathered, the gradient is summed."""


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


class Head:
    """Final norm, logits, mean cross-entropy over the micro-batch's tokens, and their gradient: all at the start of the backward pass.

    On the last stage that follows the forward pass at once, nothing has to be kept in between, and the two chunks stay alike in
    cost. Every rank reduces its own columns to two numbers a token, log-sum-exp and target's logit; the ranks exchange these and
    put the soft-max together alike.
    """

    def __init__(self, storage: Storage, name: str, group: TensorGroup) -> None:
        self._group = group
        self._norm = Norm(storage.weight["final_norm"], storage.weight_grad["final_norm"])
        self._matrix = VocabularyMatrix(storage, name)

    def run(self, x: torch.Tensor, context: Context, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient of x [S, H] for `weight` times the mean loss, and that loss: a scalar, equal on all ranks of the stage."""
        normed, saved_norm = self._norm.forward(x)
        logits = torch.mm(normed, self._matrix.weight_t)
        row, inside = context.targets
        place = row.unsqueeze(1)
        target = logits.gather(1, place).mul_(inside)
        parts = self._group.all_gather(torch.cat((logits.logsumexp(1, keepdim=True), target), 1))
        log_total = parts[:, :, :1].logsumexp(0)
        loss = (log_total - parts[:, :, 1:].sum(0)).mean()
        per_token = weight / len(x)
        logits_grad = logits.sub_(log_total).exp_().mul_(per_token)
        logits_grad.scatter_add_(1, place, inside * -per_token)
        self._matrix.grad.addmm_(logits_grad.t(), normed)
        normed_grad = self._group.all_reduce(torch.mm(logits_grad, self._matrix.weight))
        return self._norm.backward(normed_grad, saved_norm), loss
