"""What a chunk needs to know of its micro-batch, made once and used by every layer: tokens, attention mask, rotary factors."""

from __future__ import annotations

import math

import torch

from lurcher.config import ModelSection
from lurcher.runtime.data import MicroBatch
from lurcher.runtime.shapes import head_dim, heads_per_group


class Tables:
    """What contexts are cut from: the causal mask and rotary factors of all positions (RoFormer, arXiv 2104.09864, eq. 34).

    Neighbouring elements are a pair. Factors have shape [S, 1, (Q+2) * D/2], a KV group's columns: its query heads and its key turn,
    its value stays. They are made in float64. Turning back also carries the scores' scale.
    """

    def __init__(self, model: ModelSection, dtype: torch.dtype) -> None:
        size, queries, length = head_dim(model), heads_per_group(model), model.seq_len
        self.dtype = dtype
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
        self.causal = self.closed.masked_fill(self.past, 0.0)


class Context:
    """One micro-batch, with global index `microbatch`. Let S be its tokens, D a head's size, Q the query heads of a KV group.

    `mask` [Q*S, S] is added to the scores: 0 where the key is in the query's document and not behind it, else -inf.
    `rotation` and `unrotation` as in Tables, by each token's position in its document.
    """

    def __init__(self, microbatch: int, batch: MicroBatch, tables: Tables) -> None:
        self.microbatch = microbatch
        self.num_tokens = batch.num_tokens
        self.sum_len_sq = batch.sum_len_sq
        self.scale = tables.scale
        self.tokens = torch.from_numpy(batch.tokens)
        self.targets = torch.from_numpy(batch.targets)
        if batch.documents[-1] == 0:
            self.mask, self.rotation, self.unrotation = tables.causal, tables.rotation, tables.unrotation
            return
        documents = torch.from_numpy(batch.documents)
        queries = len(tables.past) // len(documents)
        seen = (documents.repeat(queries).unsqueeze(1) == documents).logical_and_(tables.past)
        self.mask = tables.closed.masked_fill(seen, 0.0)
        positions = torch.from_numpy(batch.positions)
        self.rotation = tables.rotation[positions]
        self.unrotation = tables.unrotation[positions]
