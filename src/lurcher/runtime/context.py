"""What a chunk needs to know of its micro-batch, made once and used by every layer: tokens, attention mask, rotary factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lurcher.config import ModelSection
from lurcher.runtime.data import MicroBatch
from lurcher.runtime.shapes import head_dim, heads_per_group

_MASK_ELEMENTS = 1 << 18
"""Of the masks that are made together: they are kept for the iteration."""


class LocalRows(NamedTuple):
    """Where some tokens lie among a rank's rows of the vocabulary: `row` [S], and `inside` [S, 1], 1 or 0; row 0 stands in for those outside."""

    row: torch.Tensor
    inside: torch.Tensor


class Tables:
    """What contexts are cut from: the causal mask and rotary factors of all positions (RoFormer, arXiv 2104.09864, eq. 34).

    `vocabulary` are the rows that this rank holds. `block` micro-batches are worth making at once. Neighbouring elements are a pair. Factors have shape [S, 1, (Q+2) * D/2], a KV group's columns: its query heads and its key turn,
    its value stays. They are made in float64. Turning back also carries the scores' scale.
    """

    def __init__(self, model: ModelSection, dtype: torch.dtype, vocabulary: range) -> None:
        size, queries, length = head_dim(model), heads_per_group(model), model.seq_len
        self.dtype, self.vocabulary = dtype, vocabulary
        self.scale = 1.0 / math.sqrt(size)
        speeds = model.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
        turn = torch.polar(torch.ones_like(angles), angles).repeat(1, queries + 1)
        keep = torch.ones(length, size // 2, dtype=turn.dtype)
        complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        self.rotation = torch.cat((turn, keep), dim=1).unsqueeze(1).to(complex_dtype)
        self.unrotation = torch.cat((turn.conj() * self.scale, keep), dim=1).unsqueeze(1).to(complex_dtype)
        self.past = torch.ones(length, length, dtype=torch.bool).tril_().repeat(queries, 1)
        self.closed = torch.full(self.past.shape, -math.inf, dtype=dtype)
        self.block = max(1, _MASK_ELEMENTS // self.past.numel())


class Context(NamedTuple):
    """One micro-batch, with global index `microbatch`. Let S be its tokens, D a head's size, Q the query heads of a KV group.

    `mask` [Q*S, S] is added to the scores: 0 where the key is in the query's document and not behind it, else -inf.
    `rotation` and `unrotation` as in Tables, by each token's position in its document.
    """

    microbatch: int
    num_tokens: int
    sum_len_sq: int
    scale: float
    tokens: LocalRows
    targets: LocalRows
    mask: torch.Tensor
    rotation: torch.Tensor
    unrotation: torch.Tensor


def contexts(microbatches: Sequence[int], batches: Sequence[MicroBatch], tables: Tables) -> dict[int, Context]:
    """The contexts of some micro-batches, by their index."""
    tokens, targets, documents, positions = (
        torch.from_numpy(np.stack([getattr(batch, name) for batch in batches])) for name in ("tokens", "targets", "documents", "positions")
    )
    queries = len(tables.past) // documents.shape[1]
    seen = (documents.repeat(1, queries).unsqueeze(2) == documents.unsqueeze(1)).logical_and_(tables.past)
    masks = tables.closed.masked_fill(seen, 0.0)
    rows = (_local_rows(tokens, tables), _local_rows(targets, tables))
    parts = zip(*rows, masks, tables.rotation[positions], tables.unrotation[positions], strict=True)
    return {
        microbatch: Context(microbatch, batch.num_tokens, batch.sum_len_sq, tables.scale, *tensors)
        for microbatch, batch, tensors in zip(microbatches, batches, parts, strict=True)
    }


def _local_rows(tokens: torch.Tensor, tables: Tables) -> list[LocalRows]:
    """For tokens [n, S], the rows of each micro-batch."""
    row = tokens - tables.vocabulary.start
    inside = (row >= 0).logical_and_(row < len(tables.vocabulary))
    return [LocalRows(*both) for both in zip(row.mul_(inside), inside.to(tables.dtype).unsqueeze(2), strict=True)]
