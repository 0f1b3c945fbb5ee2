"""The tensor group of a stage, as chunks use it: sums that are recorded, beaten, and known to be the last of their chunk.

A stage's half-layers are cut so that each forward and each backward needs exactly one sum (Megatron-LM, arXiv 1909.08053,
section 3): no autograd is involved, every half-layer calls `all_reduce` where the mathematics asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lurcher.layout import Stage
from lurcher.records import Op
from lurcher.runtime.direct import DirectGroup
from lurcher.runtime.instruments import Instruments


class TensorGroup:
    """`stage`'s ranks as seen by the one with index `tp_rank`; `event_group` is the id under which events are recorded."""

    def __init__(self, stage: Stage, tp_rank: int, direct: DirectGroup | None, event_group: int, instruments: Instruments) -> None:
        self.size = stage.tp_size
        self.rank = tp_rank
        self._direct = direct
        self._event_group = event_group
        self._instruments = instruments
        self._remaining = 0
        self._finish: Callable[[], None] = _nothing

    def begin_chunk(self, num_collectives: int, finish: Callable[[], None]) -> None:
        """A chunk starts that will sum `num_collectives` times; `finish` is called just before the last of them."""
        self._remaining = num_collectives if self._direct is not None else 0
        self._finish = finish

    def end_chunk(self) -> None:
        """The chunk's work is done; without any collective this is where it finishes."""
        if self._direct is None:
            self._finish()
        assert self._remaining == 0, f"a chunk left out {self._remaining} of its collectives"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the group, in place; every rank gets the same bits. Returns the tensor."""
        if self._direct is None:
            return tensor
        self._remaining -= 1
        is_last = self._remaining == 0
        if is_last:
            self._finish()
        instruments = self._instruments
        instruments.beat()
        start_ns = time.monotonic_ns()
        self._direct.sum_in_place(tensor)
        end_ns = time.monotonic_ns()
        if not is_last:
            instruments.device.exclude_ns(end_ns - start_ns)
        num_bytes = tensor.numel() * tensor.element_size()
        seq = instruments.next_seq(self._event_group)
        instruments.record(Op.ALL_REDUCE, self._event_group, seq, -1, num_bytes, tensor.element_size(), start_ns, end_ns)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """`[size, *tensor.shape]`: every rank's tensor, by a sum into empty slots, which is exact."""
        slots = tensor.new_zeros((self.size, *tensor.shape))
        slots[self.rank] = tensor
        return self.all_reduce(slots)


def _nothing() -> None:
    return None
