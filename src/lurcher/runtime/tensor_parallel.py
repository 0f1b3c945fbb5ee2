"""The tensor group of a stage, as chunks use it: sums that are recorded, beaten, and known to be the last of their chunk.

A stage's half-layers are cut so that each forward and each backward needs exactly one sum (Megatron-LM, arXiv 1909.08053,
section 3): no autograd is involved, every half-layer calls `all_reduce` where the mathematics asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from lurcher.layout import Stage
from lurcher.records import Op
from lurcher.runtime.backend import Link
from lurcher.runtime.instruments import Instruments

_Result = TypeVar("_Result")


class TensorGroup:
    """`stage`'s ranks as seen by one of them; `event_group` is the id under which events are recorded."""

    def __init__(self, stage: Stage, links: Link | None, event_group: int, instruments: Instruments) -> None:
        self._ranks = stage.ranks
        self._links = links if stage.tp_size > 1 else None
        self._event_group = event_group
        self._instruments = instruments
        self._remaining = 0
        self._finish: Callable[[], None] = _nothing

    def begin_chunk(self, num_collectives: int, finish: Callable[[], None]) -> None:
        """A chunk starts that will sum `num_collectives` times; `finish` is called just before the last of them."""
        self._remaining = num_collectives if self._links is not None else 0
        self._finish = finish

    def end_chunk(self) -> None:
        """The chunk's work is done; without any collective this is where it finishes."""
        if self._links is None:
            self._finish()
        assert self._remaining == 0, f"a chunk left out {self._remaining} of its collectives"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the group, in place; every rank gets the same bits. Returns the tensor."""
        if self._links is not None:
            self._collective(Op.ALL_REDUCE, self._links.sum_in_place, tensor)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """`[size, *tensor.shape]`: every rank's tensor, in the stage's order."""
        return tensor.unsqueeze(0) if self._links is None else torch.stack(self._collective(Op.ALL_GATHER, self._links.gather, tensor))

    def _collective(self, op: Op, act: Callable[[tuple[int, ...], torch.Tensor], _Result], tensor: torch.Tensor) -> _Result:
        self._remaining -= 1
        is_last = self._remaining == 0
        if is_last:
            self._finish()
        instruments = self._instruments
        instruments.beat()
        start_ns = time.monotonic_ns()
        result = act(self._ranks, tensor)
        end_ns = time.monotonic_ns()
        num_bytes = tensor.numel() * tensor.element_size()
        link_ns = instruments.wires.ring(self._ranks, num_bytes, instruments.iteration)
        if not is_last:
            instruments.device.exclude_ns(end_ns - start_ns)
        if link_ns:
            end_ns += link_ns
            if not is_last:
                instruments.device.exclude_link_ns(link_ns)
        instruments.record(op, self._event_group, instruments.next_seq(self._event_group), -1, num_bytes, tensor.element_size(), start_ns, end_ns)
        return result


def _nothing() -> None:
    return None
