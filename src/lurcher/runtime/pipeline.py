"""One iteration of one rank: the schedule's actions, with the activations and gradients that pass between stages.

A hop leads from a stage with a ranks to one with b ranks, where a and b may differ: rank j of the receiving stage gets its
copy from rank j mod a of the sending one, in either direction, so exactly one copy reaches every receiver.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch.distributed import Work

from lurcher.errors import LurcherError
from lurcher.layout import Layout, Stage
from lurcher.model.schedule import Action, parse, schedule_text
from lurcher.records import Op
from lurcher.runtime.context import Context, Tables
from lurcher.runtime.data import Loader
from lurcher.runtime.groups import Handle
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.stage import StageModel

_TAG_LIMIT = 1 << 30


class Hop(NamedTuple):
    """What a rank exchanges with one neighbouring stage: whom it receives from, whom it sends to."""

    source: int
    targets: tuple[int, ...]

    @classmethod
    def between(cls, own: Stage, tp_rank: int, other: Stage) -> Hop:
        """Seen from rank `tp_rank` of stage `own`."""
        targets = tuple(rank for i, rank in enumerate(other.ranks) if i % own.tp_size == tp_rank)
        return cls(other.ranks[tp_rank % other.tp_size], targets)


class _Pending(NamedTuple):
    """A receive that was posted one action ahead, so that the transfer overlaps the chunk before it."""

    work: Work
    tensor: torch.Tensor
    source: int
    seq: int


class Pipeline:
    """The actions of `rank` in every iteration under `layout`."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        schedule: str,
        stage: StageModel,
        world: Handle | None,
        loader: Loader,
        tables: Tables,
        activation_shape: tuple[int, int],
        instruments: Instruments,
    ) -> None:
        where = layout.position(rank)
        stages = layout.replicas[where.dp].stages
        self._actions = _actions(schedule, len(stages), layout.split[where.dp], where.pp)
        self._first_microbatch = layout.microbatches_of(where.dp).start
        self._num_microbatches = layout.num_microbatches
        own = stages[where.pp]
        self._before = Hop.between(own, where.tp, stages[where.pp - 1]) if where.pp > 0 else None
        self._behind = Hop.between(own, where.tp, stages[where.pp + 1]) if where.pp + 1 < len(stages) else None
        self._event_group = _pipeline_group(layout, rank)
        self._stage, self._world, self._loader, self._tables, self._shape = stage, world, loader, tables, activation_shape
        self._instruments = instruments
        self._contexts: dict[int, Context] = {}
        self._sends: list[tuple[Work, torch.Tensor]] = []

    def run(self, iteration: int) -> float:
        """All chunks of the iteration; returns the sum of the micro-batches' mean losses, 0 where no loss is computed."""
        self._stage.forget()
        self._contexts.clear()
        loss_sum = 0.0
        pending = self._post_receive(iteration, 0)
        for number, action in enumerate(self._actions):
            microbatch = self._first_microbatch + action.microbatch
            if action.kind == "F":
                self._contexts[microbatch] = self._load(iteration, microbatch)
            following = self._post_receive(iteration, number + 1)
            received = self._wait(pending)
            pending = following
            if action.kind == "F":
                output = self._stage.forward(self._contexts[microbatch], received)
                if self._stage.is_last:
                    loss_sum += float(output)
                self._send(output, self._behind, self._seq(iteration, microbatch, is_backward=False))
            else:
                grad = self._stage.backward(self._contexts.pop(microbatch), received)
                self._send(grad, self._before, self._seq(iteration, microbatch, is_backward=True))
        self._finish_sends()
        return loss_sum

    def _load(self, iteration: int, microbatch: int) -> Context:
        start_ns = time.monotonic_ns()
        context = Context(microbatch, self._loader.microbatch(iteration, microbatch), self._tables)
        self._instruments.own_work(Op.INPUT, microbatch, start_ns)
        return context

    def _post_receive(self, iteration: int, number: int) -> _Pending | None:
        """Start the receive that action `number` needs; None if it needs none or there is no such action."""
        if number >= len(self._actions):
            return None
        action = self._actions[number]
        hop = self._before if action.kind == "F" else self._behind
        if hop is None or self._world is None:
            return None
        seq = self._seq(iteration, self._first_microbatch + action.microbatch, is_backward=action.kind == "B")
        tensor = torch.empty(self._shape, dtype=self._tables.dtype)
        return _Pending(self._world.receive(tensor, hop.source, seq % _TAG_LIMIT), tensor, hop.source, seq)

    def _wait(self, pending: _Pending | None) -> torch.Tensor | None:
        if pending is None:
            return None
        self._instruments.beat()
        start_ns = time.monotonic_ns()
        pending.work.wait()
        self._record(Op.RECV, pending.tensor, pending.source, pending.seq, start_ns)
        return pending.tensor

    def _send(self, tensor: torch.Tensor, hop: Hop | None, seq: int) -> None:
        if hop is None or self._world is None:
            return
        for target in hop.targets:
            start_ns = time.monotonic_ns()
            self._sends.append((self._world.send(tensor, target, seq % _TAG_LIMIT), tensor))
            self._record(Op.SEND, tensor, target, seq, start_ns)

    def _finish_sends(self) -> None:
        """Wait until every send has left; the tensors are kept that long."""
        self._instruments.beat()
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()

    def _seq(self, iteration: int, microbatch: int, *, is_backward: bool) -> int:
        """Number of a transfer, the same at both its ends and different for all transfers of a generation."""
        return 2 * (iteration * self._num_microbatches + microbatch) + is_backward

    def _record(self, op: Op, tensor: torch.Tensor, peer: int, seq: int, start_ns: int) -> None:
        num_bytes = tensor.numel() * tensor.element_size()
        self._instruments.record(op, self._event_group, seq, peer, num_bytes, tensor.element_size(), start_ns, time.monotonic_ns())


def _actions(schedule: str, num_stages: int, num_microbatches: int, stage: int) -> tuple[Action, ...]:
    actions = parse(schedule_text(schedule, num_stages, num_microbatches)[stage])
    split = [str(action) for action in actions if action.kind == "W"]
    if split:
        raise LurcherError(f"schedule {schedule} splits backward passes ({split[0]}); the engine runs F and B actions only")
    return actions


def _pipeline_group(layout: Layout, rank: int) -> int:
    """Id of the group of the replica's stages, the world's if there is none."""
    return next((group.id for group in layout.groups() if group.kind == "pp" and rank in group.ranks), 0)
