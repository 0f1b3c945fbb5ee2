"""One rank's part of a stage: its layers, and the model's ends where the stage has them. Runs chunks, forward and backward."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import NamedTuple

import torch

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.model.program import Leg
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
    """The layers of the stage of `rank`; micro-batches between their forward and backward are kept here, each visit by itself.

    A leg may run some of the layers only. The model's ends belong to the legs that have its first and its last layer.
    """

    def __init__(self, config: JobConfig, layout: Layout, rank: int, storage: Storage, group: TensorGroup, instruments: Instruments) -> None:
        where = layout.position(rank)
        stage = layout.replicas[where.dp].stages[where.pp]
        layers = [layer for chunk in stage.chunks for layer in range(chunk.first, chunk.end)]
        self._group = group
        self._instruments = instruments
        self._layers = {layer: (Attention(storage, layer, group), FeedForward(storage, layer, group)) for layer in layers}
        self._embedding = Embedding(storage, group) if 0 in self._layers else None
        self._head = Head(storage, "embed" if config.model.tied else "head", group) if layout.num_layers - 1 in self._layers else None
        self._share = stage.shares[where.tp] / sum(stage.shares)
        # The head works in the backward chunk only, there and back: in layers of that chunk, which count `backward_ratio` times.
        self._emulated_head_layers = config.pace.head_layers * (1.0 + 1.0 / config.pace.backward_ratio)
        self._loss_weight = 1.0 / layout.num_microbatches
        self._saved: dict[tuple[int, int], _Saved] = {}
        self._losses: list[torch.Tensor] = []

    def forward(self, context: Context, leg: Leg, x: torch.Tensor | None) -> torch.Tensor:
        """The leg's output [S, H], which nobody needs behind the last layer. `x` is None before the first."""
        start_ns = self._begin(Op.FORWARD, context, leg.num_layers, SUMS_PER_LAYER * leg.num_layers + (x is None))
        if x is None:
            assert self._embedding is not None
            x = self._embedding.forward(context)
        saved_layers = []
        for layer in range(leg.first, leg.end):
            attention, feed_forward = self._layers[layer]
            x, saved_attention = attention.forward(x, context)
            x, saved_feed_forward = feed_forward.forward(x, context)
            saved_layers.append((saved_attention, saved_feed_forward))
        self._saved[context.microbatch, leg.number] = _Saved(saved_layers, x)
        self._end(Op.FORWARD, context, leg, start_ns)
        return x

    def backward(self, context: Context, leg: Leg, grad: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the leg's input [S, H]; the weights' gradients are added up. `grad` is None behind the last layer."""
        has_head = grad is None
        work = leg.num_layers + self._emulated_head_layers * has_head
        start_ns = self._begin(Op.BACKWARD, context, work, SUMS_PER_LAYER * leg.num_layers + HEAD_COLLECTIVES * has_head)
        saved = self._saved.pop((context.microbatch, leg.number))
        if grad is None:
            assert self._head is not None
            grad, loss = self._head.run(saved.output, context, self._loss_weight)
            self._losses.append(loss)
        for layer, (saved_attention, saved_feed_forward) in zip(reversed(range(leg.first, leg.end)), reversed(saved.layers), strict=True):
            attention, feed_forward = self._layers[layer]
            grad = feed_forward.backward(grad, saved_feed_forward, context)
            grad = attention.backward(grad, saved_attention, context)
        if leg.first == 0:
            assert self._embedding is not None
            self._embedding.backward(grad, context)
        self._end(Op.BACKWARD, context, leg, start_ns)
        return grad

    def begin_iteration(self) -> None:
        """Drop the micro-batches that never came back, after an iteration was broken off."""
        self._saved.clear()
        self._losses.clear()

    def loss_sum(self) -> float:
        """Sum of the mean losses of this iteration's micro-batches; 0 where the stage is not the last."""
        return math.fsum(loss.item() for loss in self._losses)

    def _begin(self, phase: Op, context: Context, num_layers: float, num_collectives: int) -> int:
        instruments = self._instruments
        instruments.begin_chunk()
        work = (num_layers, self._share, context.num_tokens, context.sum_len_sq)
        self._group.begin_chunk(num_collectives, partial(instruments.device.finish, phase, instruments.iteration, *work))
        instruments.device.begin()
        return time.monotonic_ns()

    def _end(self, phase: Op, context: Context, leg: Leg, start_ns: int) -> None:
        self._group.end_chunk()
        self._instruments.device.end()
        self._instruments.record(phase, -1, context.microbatch, leg.number, 0, 0, start_ns, time.monotonic_ns())
