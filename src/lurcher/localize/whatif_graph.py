"""What an operation waits for: the dependency graph of one replica's step, read off a trace.

The rules are those of arXiv 2505.05713 (section 3) as its artifact, ByteDance-Seed/StragglerAnalysis, applies them: computation
in the order it ran, one stream for each kind of transfer, a transfer after what makes its data and before what needs it,
and the step's end. Sends and receives are paired by the model chunk and micro-batch that they carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import OP_NAMES, TraceOp
from lurcher.localize.whatif_table import OpTable

CLOCK_SLACK_S = 5e-5
"""Stamps of one worker's streams agree to so much; from the artifact."""
COMPUTE = (TraceOp.FORWARD, TraceOp.BACKWARD)
TRANSFERS = (TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV, TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV)
_OF_REPLICAS = (TraceOp.PARAMS_ALL_GATHER, TraceOp.GRADS_REDUCE_SCATTER, TraceOp.SEPARATE_GRADS_ALL_REDUCE)
SYNCED = (*_OF_REPLICAS, TraceOp.CLIP_GRADS)
"""Collectives over all replicas."""


class Graph(msgspec.Struct, frozen=True, eq=False):
    """For each operation what must end before it starts; and the operations that transfer together, none of them twice.

    Those of a group end their own transfer time after the last of them has started (in all replicas, if it is synced).
    """

    table: OpTable
    before: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]

    def grouped(self) -> np.ndarray:
        """Which operations are in a group, (O,) bool: their duration contains waiting."""
        found = np.zeros(len(self.before), bool)
        found[[op for group in self.groups for op in group]] = True
        return found

    def synced(self) -> np.ndarray:
        """Which operations all replicas do together, (O,) bool."""
        return self.grouped() & np.isin(self.table.op, SYNCED)


def build_graph(table: OpTable) -> Graph:
    """The graph of a replica's operations; raises UserError where they are no pipeline's."""
    return _Builder(table).graph()


class _Builder:
    """Collects edges and groups; operations are numbers of table rows."""

    def __init__(self, table: OpTable) -> None:
        self.table = table
        self.before: list[set[int]] = [set() for _ in range(len(table))]
        self.groups: list[tuple[int, ...]] = []
        self._start, self._end = table.start_s.tolist(), table.end_s.tolist()
        self._seq, self._op = table.seq.tolist(), table.op.tolist()
        self._of: dict[tuple[int, int], list[int]] = {}
        for i, key in enumerate(zip(table.stage.tolist(), self._op, strict=True)):
            self._of.setdefault(key, []).append(i)

    def graph(self) -> Graph:
        carried: dict[tuple[TraceOp, int, int], int] = {}
        for stage in range(self.table.num_stages):
            computed = self._computed(stage)
            self._chain(computed)
            for kind in TRANSFERS:
                ops = self._in_order(stage, [kind])
                self._chain(ops)
                carried |= self._fasten(stage, kind, ops)
            self._first_backward(stage, computed)
            self._replicas(stage, computed)
            self._step_end(stage, computed)
        self._pair(carried)
        last = self.table.num_stages - 1
        ends = [op for stage in dict.fromkeys((0, last)) for op in self._of.get((stage, TraceOp.EMBEDDING_GRADS_ALL_REDUCE), [])]
        clips = [op for stage in range(last + 1) for op in self._of.get((stage, TraceOp.CLIP_GRADS), [])]
        self.groups += [tuple(group) for group in (ends, clips) if group]
        return Graph(self.table, tuple(tuple(sorted(ops)) for ops in self.before), tuple(self.groups))

    def _in_order(self, stage: int, kinds: Sequence[TraceOp]) -> list[int]:
        """A stage's operations of some kinds as they started; what starts together keeps its number's and its name's order."""
        ops = [op for kind in kinds for op in self._of.get((stage, kind), [])]
        return sorted(ops, key=lambda op: (self._start[op], self._seq[op], OP_NAMES[self._op[op]]))

    def _computed(self, stage: int) -> list[int]:
        computed = self._in_order(stage, COMPUTE)
        for kind in COMPUTE:
            if not self._of.get((stage, kind)):
                raise UserError(f"{self.table.path} has no {OP_NAMES[kind]} on stage {stage}; every stage computes both ways")
        return computed

    def _chain(self, ops: Sequence[int]) -> None:
        for earlier, later in pairwise(ops):
            self.before[later].add(earlier)

    def _fasten(self, stage: int, kind: TraceOp, ops: Sequence[int]) -> dict[tuple[TraceOp, int, int], int]:
        """Tie a stage's transfers of one kind to its computation; returns those with a partner by what they carry."""
        forward = kind in (TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV)
        sends = kind in (TraceOp.FORWARD_SEND, TraceOp.BACKWARD_SEND)
        computed = self._of[stage, TraceOp.FORWARD if forward else TraceOp.BACKWARD]
        step = 1 if forward is sends else -1
        num_chunks = int(self.table.model_chunk.max()) + 1
        carried = {}
        for op, place in self._matched(stage, kind, ops, computed, step, num_chunks):
            compute = computed[place]
            if sends:
                self.before[op].add(compute)
            else:
                self.before[compute].add(op)
                if place:
                    self.before[op].add(computed[place - 1])
            chunk = int(self.table.model_chunk[compute])
            if 0 <= chunk + step < num_chunks:
                carried[kind, max(chunk, chunk + step), int(self.table.microbatch[compute])] = op
        alone = set(ops) - set(carried.values())
        self.groups += [(op,) for op in sorted(alone)]
        return carried

    def _matched(self, stage: int, kind: TraceOp, ops: Sequence[int], computed: Sequence[int], step: int, num_chunks: int) -> list[tuple[int, int]]:
        """Each transfer with the place of its computation. Where a chunk has no neighbour, transfers may be missing, or be there and do nothing.

        If the numbers do not fit, transfers that lie before or after all computation are left out: some profilers record those.
        """
        chunks = self.table.model_chunk[computed] + step
        needed = np.flatnonzero((chunks >= 0) & (chunks < num_chunks)).tolist()
        places = list(range(len(computed)))
        if kind in (TraceOp.FORWARD_RECV, TraceOp.BACKWARD_RECV):
            latest = max(self._start[op] for op in computed) + CLOCK_SLACK_S
            used = [op for op in ops if self._start[op] <= latest]
        else:
            earliest = min(self._end[op] for op in computed) - CLOCK_SLACK_S
            used = [op for op in ops if self._end[op] >= earliest]
        for some in (ops, used):
            for candidate in (needed, places, places[1:]):
                if len(some) == len(candidate):
                    return list(zip(some, candidate, strict=True))
        raise UserError(
            f"{self.table.path} has {len(ops)} {OP_NAMES[kind]} on stage {stage} for {len(needed)} micro-batches that need one;"
            " give every transfer of the pipeline"
        )

    def _pair(self, carried: dict[tuple[TraceOp, int, int], int]) -> None:
        for send, recv in ((TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV), (TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV)):
            sent, received = ({key[1:]: op for key, op in carried.items() if key[0] == kind} for kind in (send, recv))
            for what in sent.keys() ^ received.keys():
                alone = sent.get(what, received.get(what, 0))
                raise UserError(
                    f"{self.table.path}: {self.table.words(alone)}, micro-batch {what[1]}, has no partner on the other stage; give both sides"
                )
            self.groups += [(op, received[what]) for what, op in sorted(sent.items())]

    def _first_backward(self, stage: int, computed: Sequence[int]) -> None:
        """The first transfer of gradients is launched after the second last forward pass before the first backward one."""
        first = next(place for place, op in enumerate(computed) if self._op[op] == TraceOp.BACKWARD)
        if first >= 2:
            for kind in (TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV):
                for op in self._of.get((stage, kind), [])[:1]:
                    self.before[op].add(computed[first - 2])

    def _replicas(self, stage: int, computed: Sequence[int]) -> None:
        """Collectives over the replicas: parameters before a chunk's first forward pass, gradients after its last backward pass."""
        gathers, scatters = (self._of.get((stage, kind), []) for kind in _OF_REPLICAS[:2])
        self._chain(self._in_order(stage, _OF_REPLICAS[:2]))
        for chunk, op in {int(self.table.chunk[op]): op for op in gathers}.items():
            forwards = [i for i in computed if self._op[i] == TraceOp.FORWARD and self.table.chunk[i] == chunk]
            if forwards:
                self.before[forwards[0]].add(op)
        if self._of.get((stage, TraceOp.SEPARATE_GRADS_ALL_REDUCE)):  # gradients are reduced while others are still computed
            for chunk, op in {int(self.table.chunk[op]): op for op in reversed(scatters)}.items():
                backwards = [i for i in computed if self._op[i] == TraceOp.BACKWARD and self.table.chunk[i] == chunk]
                if backwards:
                    self.before[op].add(max(backwards, key=lambda i: self._end[i]))
        self.groups += [(op,) for kind in _OF_REPLICAS for op in self._of.get((stage, kind), [])]

    def _step_end(self, stage: int, computed: Sequence[int]) -> None:
        """What follows the last computation, one after the other."""
        separate = self._of.get((stage, TraceOp.SEPARATE_GRADS_ALL_REDUCE), [])
        scatters = self._of.get((stage, TraceOp.GRADS_REDUCE_SCATTER), [])
        collected = self._of.get((stage, TraceOp.GC), [])
        self._chain([max(computed, key=lambda op: self._end[op]), *collected])
        rest = [
            *self._of.get((stage, TraceOp.LAYERNORM_GRADS_ALL_REDUCE), []),
            *(self._of.get((stage, TraceOp.EMBEDDING_GRADS_ALL_REDUCE), []) if stage in (0, self.table.num_stages - 1) else []),
            *(separate or scatters),
            *self._of.get((stage, TraceOp.CLIP_GRADS), []),
            *self._of.get((stage, TraceOp.OPTIMIZER), []),
        ]
        last = collected[-1] if collected else max(computed, key=lambda op: self._end[op])
        self._chain([last, *rest])
        if separate and scatters and rest:
            self.before[rest[0]].add(scatters[-1])
