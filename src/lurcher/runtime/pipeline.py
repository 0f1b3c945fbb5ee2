"""One iteration of one rank: the schedule's actions, with the activations and gradients that pass between stages."""

from __future__ import annotations

import time

import torch

from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.model.schedule import Action, parse, schedule_text
from lurcher.records import Op
from lurcher.runtime.context import Context, Tables, contexts
from lurcher.runtime.data import Loader
from lurcher.runtime.hops import Hop, Hops
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.links import HOP, Links
from lurcher.runtime.stage import StageModel


class Pipeline:
    """The actions of `rank` in every iteration under `layout`."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        schedule: str,
        stage: StageModel,
        links: Links | None,
        loader: Loader,
        tables: Tables,
        activation_shape: tuple[int, int],
        instruments: Instruments,
    ) -> None:
        where = layout.position(rank)
        stages = layout.replicas[where.dp].stages
        self._actions = _actions(schedule, len(stages), layout.split[where.dp], where.pp)
        self._microbatches = layout.microbatches_of(where.dp)
        self._num_microbatches = layout.num_microbatches
        self._hops = Hops.of(layout, rank)
        self._event_group = _pipeline_group(layout, rank)
        self._stage, self._links, self._loader, self._tables = stage, links, loader, tables
        self._activation = torch.empty(activation_shape, dtype=tables.dtype, device="meta")
        self._instruments = instruments
        self._contexts: dict[int, Context] = {}

    def run(self, iteration: int) -> float:
        """All chunks of the iteration; returns the sum of the micro-batches' mean losses, 0 where no loss is computed."""
        self._stage.begin_iteration()
        self._contexts.clear()
        for action in self._actions:
            microbatch = self._microbatches.start + action.microbatch
            if action.kind == "F":
                context = self._load(iteration, microbatch)
                output = self._stage.forward(context, self._receive(self._hops.before, self._seq(iteration, microbatch, is_backward=False)))
                self._send(output, self._hops.behind, self._seq(iteration, microbatch, is_backward=False))
            else:
                received = self._receive(self._hops.behind, self._seq(iteration, microbatch, is_backward=True))
                grad = self._stage.backward(self._contexts.pop(microbatch), received)
                self._send(grad, self._hops.before, self._seq(iteration, microbatch, is_backward=True))
        return self._stage.loss_sum()

    def _load(self, iteration: int, microbatch: int) -> Context:
        """The context of a micro-batch. Several are made at once, as long as their masks are small: it costs little more than one."""
        if microbatch not in self._contexts:
            start_ns = time.monotonic_ns()
            following = range(microbatch, min(microbatch + self._tables.block, self._microbatches.stop))
            self._contexts.update(contexts(following, self._loader.microbatches(iteration, following), self._tables))
            self._instruments.own_work(Op.INPUT, microbatch, start_ns)
        return self._contexts[microbatch]

    def _receive(self, hop: Hop | None, seq: int) -> torch.Tensor | None:
        if hop is None or self._links is None:
            return None
        self._instruments.beat()
        start_ns = time.monotonic_ns()
        tensor = self._links.receive(hop.source, HOP, seq, self._activation)
        self._record(Op.RECV, tensor, hop.source, seq, start_ns)
        return tensor

    def _send(self, tensor: torch.Tensor, hop: Hop | None, seq: int) -> None:
        if hop is None or self._links is None:
            return
        self._instruments.beat()
        for target in hop.targets:
            start_ns = time.monotonic_ns()
            self._links.send(target, HOP, seq, tensor)
            self._record(Op.SEND, tensor, target, seq, start_ns)

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
