"""One rank's part of a stage: its layers, and the model's ends where the stage has them. Runs chunks, forward and backward."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import NamedTuple

import torch

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.records import Op
from lurcher.runtime.context import Context
from lurcher.runtime.decoder import SUMS_PER_LAYER, Attention, FeedForward, SavedAttention, SavedFeedForward
from lurcher.runtime.head import HEAD_COLLECTIVES, Embedding, Head
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.storage import Storage
from lurcher.runtime.tensor_parallel import TensorGroup


class _Saved(NamedTuple):
    """What a micro-batch's backward chunk finds of its forward chunk; the head needs the stage's output."""

    layers: list[tuple[SavedAttention, SavedFeedForward]]
    output: torch.Tensor


class StageModel:
    """The layers of the stage of `rank`; micro-batches between their forward and backward are kept here."""

    def __init__(self, config: JobConfig, layout: Layout, rank: int, storage: Storage, group: TensorGroup, instruments: Instruments) -> None:
        where = layout.position(rank)
        stage = layout.replicas[where.dp].stages[where.pp]
        chunk = stage.chunks[0]
        self.is_first = where.pp == 0
        self.is_last = where.pp == len(layout.replicas[where.dp].stages) - 1
        self._group = group
        self._instruments = instruments
        self._layers = [(Attention(storage, layer, group), FeedForward(storage, layer, group)) for layer in range(chunk.first, chunk.end)]
        self._embedding = Embedding(storage, group) if self.is_first else None
        self._head = Head(storage, "embed" if config.model.tied else "head", group) if self.is_last else None
        self._share = stage.shares[where.tp] / sum(stage.shares)
        # The head works in the backward chunk only, there and back: in layers of that chunk, which count `backward_ratio` times.
        head_layers = config.pace.head_layers * (1.0 + 1.0 / config.pace.backward_ratio) if self.is_last else 0.0
        self._emulated_layers = {Op.FORWARD: float(len(chunk)), Op.BACKWARD: len(chunk) + head_layers}
        self._loss_weight = 1.0 / layout.num_microbatches
        self._saved: dict[int, _Saved] = {}
        self._losses: list[torch.Tensor] = []

    def forward(self, context: Context, x: torch.Tensor | None) -> torch.Tensor:
        """The stage's output [S, H], which nobody needs on the last stage. `x` is None on the first."""
        start_ns = self._begin(Op.FORWARD, context, SUMS_PER_LAYER * len(self._layers) + self.is_first)
        if self._embedding is not None:
            x = self._embedding.forward(context)
        assert x is not None
        saved_layers = []
        for attention, feed_forward in self._layers:
            x, saved_attention = attention.forward(x, context)
            x, saved_feed_forward = feed_forward.forward(x, context)
            saved_layers.append((saved_attention, saved_feed_forward))
        self._saved[context.microbatch] = _Saved(saved_layers, x)
        self._end(Op.FORWARD, context, start_ns)
        return x

    def backward(self, context: Context, grad: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the stage's input [S, H]; the weights' gradients are added up. `grad` is None on the last stage."""
        start_ns = self._begin(Op.BACKWARD, context, SUMS_PER_LAYER * len(self._layers) + HEAD_COLLECTIVES * self.is_last)
        saved = self._saved.pop(context.microbatch)
        if self._head is not None:
            grad, loss = self._head.run(saved.output, context, self._loss_weight)
            self._losses.append(loss)
        assert grad is not None
        for (attention, feed_forward), (saved_attention, saved_feed_forward) in zip(reversed(self._layers), reversed(saved.layers), strict=True):
            grad = feed_forward.backward(grad, saved_feed_forward, context)
            grad = attention.backward(grad, saved_attention, context)
        if self._embedding is not None:
            self._embedding.backward(grad, context)
        self._end(Op.BACKWARD, context, start_ns)
        return grad

    def begin_iteration(self) -> None:
        """Drop the micro-batches that never came back, after an iteration was broken off."""
        self._saved.clear()
        self._losses.clear()

    def loss_sum(self) -> float:
        """Sum of the mean losses of this iteration's micro-batches; 0 where the stage is not the last."""
        return math.fsum(loss.item() for loss in self._losses)

    def _begin(self, phase: Op, context: Context, num_collectives: int) -> int:
        instruments = self._instruments
        instruments.begin_chunk()
        work = (self._emulated_layers[phase], self._share, context.num_tokens, context.sum_len_sq)
        self._group.begin_chunk(num_collectives, partial(instruments.device.finish, phase, instruments.iteration, *work))
        instruments.device.begin()
        return time.monotonic_ns()

    def _end(self, phase: Op, context: Context, start_ns: int) -> None:
        self._group.end_chunk()
        self._instruments.device.end()
        only_chunk = 0
        self._instruments.record(phase, -1, context.microbatch, only_chunk, 0, 0, start_ns, time.monotonic_ns())
