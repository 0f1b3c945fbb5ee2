"""After the last chunk: gradients are summed over their owners, and one world sum tells norm, loss and whether all is finite.

The loss carries 1 / GLOBAL number of micro-batches, so a plain sum over owners is the exact weighting for any split. What every
tensor rank of a stage holds whole (norms) has its full gradient on each of them: scaled by 1 / tp_size, summed over all owners.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lurcher.layout import Layout
from lurcher.records import Op
from lurcher.runtime.backend import Group
from lurcher.runtime.groups import Groups
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.owners import Slice, owner_sets, slices_of
from lurcher.runtime.storage import Storage

WORLD_GROUP = 0
"""`Layout.groups` numbers the world first."""


class Totals(NamedTuple):
    """The iteration's outcome, with the same bits on every rank."""

    loss: float
    grad_norm: float
    finite: bool


class _Bucket(NamedTuple):
    """One owner set's gradients: `spans` of the flat gradient, in the order that all owners share."""

    handle: Group
    ring: tuple[int, ...]  # the owners, in the order in which the sum goes round
    spans: list[tuple[int, int]]
    event_group: int
    seq_offset: int  # in the world group, whose numbers are shared out among all sets without a group of their own


class GradientSync:
    """The sums of `rank` at the end of every iteration under `layout`."""

    def __init__(self, layout: Layout, rank: int, slices: Sequence[Slice], storage: Storage, groups: Groups, instruments: Instruments) -> None:
        where = layout.position(rank)
        stages = layout.replicas[where.dp].stages
        self._storage, self._instruments, self._world = storage, instruments, groups.world
        self._num_microbatches = layout.num_microbatches
        self._everybody = layout.in_order(layout.ranks)
        self._tp_size = stages[where.pp].tp_size
        self._tells_loss = where.pp == len(stages) - 1 and where.tp == 0
        mine = slices_of(slices, rank)
        self._counted = storage.spans([piece for piece in mine if piece.primary == rank])
        data_groups = {group.ranks: group.id for group in layout.groups() if group.kind == "dp"}
        shared = {owners: pieces for owners, pieces in owner_sets(slices).items() if len(owners) > 1}
        without_group = [owners for owners in shared if owners not in data_groups]
        self._num_world_calls = len(without_group) + 1
        self._buckets: list[_Bucket] = []
        for owners, pieces in shared.items():
            handle = groups.over(owners) if rank in owners else None
            if handle is not None:
                offset = 0 if owners in data_groups else without_group.index(owners)
                event_group = data_groups.get(owners, WORLD_GROUP)
                self._buckets.append(_Bucket(handle, layout.in_order(owners), storage.spans(pieces), event_group, offset))

    def run(self, loss_sum: float) -> Totals:
        """Sum the gradients in place; `loss_sum` is this rank's sum of mean losses."""
        grad = self._storage.grad
        if self._tp_size > 1:
            grad[self._storage.num_split :].mul_(1.0 / self._tp_size)
        world_seq = self._instruments.next_seq(WORLD_GROUP, self._num_world_calls)
        self._sum_over_owners(world_seq)
        return self._totals(loss_sum, world_seq + self._num_world_calls - 1)

    def _sum_over_owners(self, world_seq: int) -> None:
        """All sums are started, then waited for in order. Each event starts where the one before ended, so none is counted twice."""
        grad = self._storage.grad
        self._instruments.beat()
        flats = [_gathered(grad, bucket.spans) for bucket in self._buckets]
        start_ns = time.monotonic_ns()
        works = [bucket.handle.all_reduce(flat) for bucket, flat in zip(self._buckets, flats, strict=True)]
        for bucket, flat, work in zip(self._buckets, flats, works, strict=True):
            work.wait()
            self._over_the_links(bucket.ring, flat)
            end_ns = time.monotonic_ns()
            seq = world_seq + bucket.seq_offset if bucket.event_group == WORLD_GROUP else self._instruments.next_seq(bucket.event_group)
            self._record(bucket.event_group, seq, flat, start_ns, end_ns)
            start_ns = end_ns
            _scatter(flat, grad, bucket.spans)

    def _totals(self, loss_sum: float, seq: int) -> Totals:
        grad = self._storage.grad
        square_sum = 0.0
        for start, end in self._counted:
            exact = grad[start:end].double()
            square_sum += float(torch.dot(exact, exact))
        is_broken = not (math.isfinite(square_sum) and math.isfinite(loss_sum))
        loss = loss_sum / self._num_microbatches if self._tells_loss else 0.0
        parts = torch.tensor([0.0 if is_broken else square_sum, 0.0 if is_broken else loss, float(is_broken)], dtype=torch.float64)
        if self._world is not None:
            self._instruments.beat()
            start_ns = time.monotonic_ns()
            self._world.all_reduce(parts).wait()
            self._over_the_links(self._everybody, parts)
            self._record(WORLD_GROUP, seq, parts, start_ns, time.monotonic_ns())
        square_sum, loss, num_broken = parts.tolist()
        if num_broken:
            return Totals(math.nan, math.nan, False)
        return Totals(loss, math.sqrt(square_sum), True)

    def _over_the_links(self, ring: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sums that were started together share the links: each has them to itself once the one before it is through."""
        self._instruments.wires.ring(ring, tensor.numel() * tensor.element_size(), self._instruments.iteration)

    def _record(self, group: int, seq: int, tensor: torch.Tensor, start_ns: int, end_ns: int) -> None:
        num_bytes = tensor.numel() * tensor.element_size()
        self._instruments.record(Op.ALL_REDUCE, group, seq, -1, num_bytes, tensor.element_size(), start_ns, end_ns)


def _gathered(grad: torch.Tensor, spans: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The spans end to end: a view where they are one piece, else a copy."""
    if len(spans) == 1:
        return grad[spans[0][0] : spans[0][1]]
    return torch.cat([grad[start:end] for start, end in spans])


def _scatter(flat: torch.Tensor, grad: torch.Tensor, spans: Sequence[tuple[int, int]]) -> None:
    """Put a copy back; a view is there already."""
    if len(spans) == 1:
        return
    position = 0
    for start, end in spans:
        grad[start:end] = flat[position : position + end - start]
        position += end - start
