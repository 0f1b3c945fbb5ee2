"""What passes between a rank's stage and others: activations forward, gradients back, whole on every rank once received."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import torch

from lurcher.layout import Layout
from lurcher.records import Op
from lurcher.runtime.backend import Link
from lurcher.runtime.gradients import WORLD_GROUP
from lurcher.runtime.hops import Part, held_apart, parts
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.links import HOP

Place = tuple[int, int]
"""(replica, stage)."""


class _Way(NamedTuple):
    """To and from one stage: what this rank sends and receives, and which elements it and its mates then hold of what their stage got."""

    outward: tuple[Part, ...]
    inward: tuple[Part, ...]
    held: dict[int, tuple[int, int]]
    event_group: int


class Passages:
    """The ways between the stage of `rank` and its `neighbours`; what passes has the shape `activation_shape`."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        neighbours: Iterable[Place],
        links: Link | None,
        activation_shape: tuple[int, int],
        dtype: torch.dtype,
        instruments: Instruments,
    ) -> None:
        where = layout.position(rank)
        self._place: Place = (where.dp, where.pp)
        self._rank, self._links, self._instruments = rank, links, instruments
        self._shape, self._whole = activation_shape, torch.empty(activation_shape, dtype=dtype, device="meta").view(-1)
        own = layout.replicas[where.dp].stages[where.pp].ranks
        self._mates = tuple(mate for mate in own if mate != rank)
        self._tensor_group = next((group.id for group in layout.groups() if group.kind == "tp" and group.ranks == own), -1)
        self._ways: dict[Place, _Way] = {}
        for place in set(neighbours) - {self._place}:
            other = layout.replicas[place[0]].stages[place[1]].ranks
            arriving = parts(other, own, self._whole.numel())
            outward = tuple(part for part in parts(own, other, self._whole.numel()) if part.source == rank)
            inward = tuple(part for part in arriving if part.target == rank)
            self._ways[place] = _Way(outward, inward, held_apart(arriving, other, own), _event_group(layout, rank, other[0]))
        self._kept: dict[int, torch.Tensor] = {}

    def begin_iteration(self) -> None:
        """Forget what an iteration that was broken off left."""
        self._kept.clear()

    def send(self, tensor: torch.Tensor, target: Place, seq: int) -> None:
        """Give a stage its input. `seq` is the transfer's number, the same at both ends and different for all transfers of a generation."""
        if target == self._place:
            self._kept[seq] = tensor
            return
        assert self._links is not None  # there is another stage, so there are links
        way, flat = self._ways[target], tensor.view(-1)
        self._instruments.beat()
        for part in way.outward:
            start_ns = time.monotonic_ns()
            self._links.send(part.target, HOP, seq, flat[part.start : part.end])
            self._record(Op.SEND, way.event_group, seq, part.target, part.end - part.start, start_ns)

    def receive(self, source: Place, seq: int) -> torch.Tensor:
        """The tensor that a stage sent under that number, the same bits on every rank of this one."""
        if source == self._place:
            return self._kept.pop(seq)
        assert self._links is not None
        way = self._ways[source]
        self._instruments.beat()
        arrived = []
        for part in way.inward:
            start_ns = time.monotonic_ns()
            arrived.append(self._links.receive(part.source, HOP, seq, self._whole[part.start : part.end]))
            num_bytes = (part.end - part.start) * self._whole.element_size()
            self._instruments.wires.hop(part.source, self._rank, num_bytes, self._instruments.iteration)
            self._record(Op.RECV, way.event_group, seq, part.source, part.end - part.start, start_ns)
        return (self._with_the_mates(way, arrived, seq) if way.held else _joined(arrived)).view(self._shape)

    def _with_the_mates(self, way: _Way, arrived: list[torch.Tensor], seq: int) -> torch.Tensor:
        """The whole tensor, out of what each rank of the stage has got of it."""
        assert self._links is not None
        self._instruments.beat()
        start_ns = time.monotonic_ns()
        own = _joined(arrived)
        for mate in self._mates:
            self._links.send(mate, HOP, seq, own)
        found = [
            own if rank == self._rank else self._links.receive(rank, HOP, seq, self._whole[start:end]) for rank, (start, end) in way.held.items()
        ]
        tensor = torch.cat(found)
        self._record(Op.ALL_GATHER, self._tensor_group, self._instruments.next_seq(self._tensor_group), -1, tensor.numel(), start_ns)
        return tensor

    def _record(self, op: Op, group: int, seq: int, peer: int, num_elements: int, start_ns: int) -> None:
        size = self._whole.element_size()
        self._instruments.record(op, group, seq, peer, num_elements * size, size, start_ns, time.monotonic_ns())


def _joined(arrived: list[torch.Tensor]) -> torch.Tensor:
    return arrived[0] if len(arrived) == 1 else torch.cat(arrived)


def _event_group(layout: Layout, rank: int, other: int) -> int:
    """Id of the pipeline that both ranks belong to, the world's where a route joins two."""
    return next((group.id for group in layout.groups() if group.kind == "pp" and {rank, other} <= set(group.ranks)), WORLD_GROUP)
