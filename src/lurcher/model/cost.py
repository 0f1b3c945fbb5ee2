"""What an iteration should cost: learned online from chunks, then walked along the schedule.

A rank's chunk takes c + layers * share * (alpha * num_tokens + beta * sum_len_sq): ResiHP eq. 1 with an intercept, fitted
per rank and phase, so that uneven layers and shares need no new fit. The mates' meetings and the engine gap are levels of their own.
A stage waits for its slowest rank, a replica is a walk of the schedule, the job waits for its slowest replica, and what
the walk leaves out (gradient sync, norm, optimizer, commit) is one fitted level. Backward is the merged one (B and W), unless
the schedule has W actions, whose chunks are then fitted as a phase of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lurcher.errors import UserError
from lurcher.layout import Layout, Stage
from lurcher.model.critical_path import Floats, makespans, makespans_by_count
from lurcher.model.meeting import meeting_s
from lurcher.model.order import Ints, Order, compile_schedule
from lurcher.model.robust_fit import MIN_ROWS, PHASES, RobustFits
from lurcher.model.schedule import SPLIT_BACKWARD, schedule_text
from lurcher.records import Op

Rows = NDArray[Any]
"""A structured array: `records.WORKLOAD` or `records.CHUNK`."""

READY_ITERATIONS = 5
"""Unfrozen iterations before the model speaks."""
OVERHEAD_WINDOW = 16
"""Iterations whose median gives the overhead outside the walk: it follows a host that gets busier, and a suspicion freezes it."""
_WORK_RIDGE = (1e-4, 1e-8, 1e-8)
"""Tokens are often the same in every chunk, and then no data tell intercept from slope: the work gets it, as it should scale with layers."""


@dataclass(frozen=True, eq=False)
class _Block:
    """Replicas with equally many stages and micro-batches, walked as lanes. Its ranks stand in order of (replica, stage)."""

    replicas: tuple[int, ...]
    num_stages: int
    microbatches: int
    ranks: Ints
    units: Floats  # layers * share of the stage, per rank
    lanes: Ints  # index into `replicas`, per rank
    stage_firsts: Ints  # index of each stage's first rank


class CostModel:
    """Learns what an iteration of this job should cost. `hop_s` is the time of a send between stages that no chunk shows."""

    def __init__(self, schedule: str = "1f1b", hop_s: float = 0.0) -> None:
        schedule_text(schedule, 1, 1)  # refuse an unknown name here
        self._schedule = schedule
        self._phases = range(len(PHASES) if schedule in SPLIT_BACKWARD else 2)
        self._hop_s = hop_s
        self._work = RobustFits(_WORK_RIDGE)
        self._meeting = RobustFits((0.0,))
        self._gap = RobustFits((0.0,))
        self._work_scales: tuple[float, float] | None = None
        self._overheads: deque[float] = deque(maxlen=OVERHEAD_WINDOW)
        self._num_observed = 0
        self._orders: dict[tuple[int, int], Order] = {}
        self._blocks_of: tuple[Layout, tuple[_Block, ...]] | None = None

    @property
    def ready(self) -> bool:
        """Whether enough unfrozen iterations were seen to predict one."""
        return self._num_observed >= READY_ITERATIONS

    @property
    def overhead_s(self) -> float:
        """Seconds of an iteration outside the walk; 0 before anything was observed."""
        return median(self._overheads) if self._overheads else 0.0

    def observe(
        self,
        layout: Layout,
        workload: Rows,
        chunks: Rows,
        duration_s: float,
        frozen_ranks: Collection[int] | None = None,
        frozen: bool = False,
    ) -> None:
        """Learn one iteration: its micro-batches, all its chunks and its duration in seconds.

        `frozen_ranks` are suspects, whose slowness must not become their norm; while there is one, the overhead is not
        learned either. `frozen` learns nothing. An iteration without chunks or a positive duration is left out.
        """
        rows = chunks[np.isin(chunks["phase"], PHASES) & ~np.isin(chunks["rank"], list(frozen_ranks or ()))]
        if frozen or not len(rows) or not np.isfinite(duration_s) or duration_s <= 0:
            return
        slots = _slots(rows)
        num_tokens, sum_len_sq = _work_of(workload, layout.num_microbatches)
        units = units_of(layout)[rows["rank"]]
        if self._work_scales is None:
            self._work_scales = (_scale_of(units * num_tokens[rows["microbatch"]]), _scale_of(units * sum_len_sq[rows["microbatch"]]))
        features = self._features(units, num_tokens[rows["microbatch"]], sum_len_sq[rows["microbatch"]])
        self._work.update(slots, features, rows["busy_s"])
        ones = np.ones((len(rows), 1))
        self._gap.update(slots, ones, rows["gap_s"])
        self._learn_meetings(layout, chunks, frozen_ranks or ())
        if not frozen_ranks:
            self._num_observed += 1
            self._overheads.append(duration_s - self._walk_s(layout, workload, {}))

    def _learn_meetings(self, layout: Layout, chunks: Rows, frozen_ranks: Collection[int]) -> None:
        """What a stage's mates lose to each other in a chunk; not where one of them is frozen, for they wait for it."""
        stages = [stage.ranks for _, _, stage in layout.stages() if not set(stage.ranks) & set(frozen_ranks)]
        rows, lost_s = meeting_s(chunks[np.isin(chunks["phase"], PHASES)], stages)
        if len(rows):
            self._meeting.update(_slots(rows), np.ones((len(rows), 1)), lost_s)

    def expected_s(self, layout: Layout, workload: Rows, slowdown: Mapping[int, float] | None = None) -> float:
        """Seconds that an iteration of this workload should take, each rank's work stretched by its `slowdown`; NaN until ready."""
        if not self.ready:
            return float("nan")
        return self._walk_s(layout, workload, slowdown or {}) + self.overhead_s

    def rank_ratios(self, layout: Layout, workload: Rows, chunks: Rows) -> dict[int, float]:
        """Observed / expected busy time of each rank over the given chunks, against its own history. Ranks without one are left out."""
        rows = chunks[np.isin(chunks["phase"], PHASES)]
        slots = _slots(rows)
        known = slots < len(self._work.num_rows)
        known[known] = self._work.num_rows[slots[known]] >= MIN_ROWS
        rows, slots = rows[known], slots[known]
        if not len(rows):
            return {}
        num_tokens, sum_len_sq = _work_of(workload, layout.num_microbatches)
        features = self._features(units_of(layout)[rows["rank"]], num_tokens[rows["microbatch"]], sum_len_sq[rows["microbatch"]])
        expected = np.bincount(rows["rank"], self._work.predict(slots, features))
        observed = np.bincount(rows["rank"], rows["busy_s"])
        return {int(rank): float(observed[rank] / expected[rank]) for rank in np.unique(rows["rank"]) if expected[rank] > 0}

    def chunk_times(self, layout: Layout, workload: Rows, slowdown: Mapping[int, float] | None = None) -> tuple[tuple[Floats, ...], ...]:
        """Per replica: expected (forward_s, backward_s), with weight_s where the schedule has W, each of shape (P, m), transfer and gap included."""
        found: dict[int, tuple[Floats, ...]] = {}
        for block in self._blocks(layout):
            times = self._block_times(block, layout, *_work_of(workload, layout.num_microbatches), slowdown or {})
            for lane, replica in enumerate(block.replicas):
                found[replica] = tuple(part[lane] for part in times)
        return tuple(found[replica] for replica in range(len(layout.replicas)))

    def split_times(self, layout: Layout, max_microbatches: int, workload: Rows, slowdown: Mapping[int, float] | None = None) -> tuple[Floats, ...]:
        """Per replica: T_i(m) for m = 0 .. max_microbatches, seconds for m average micro-batches of the workload, without overhead."""
        found: dict[int, Floats] = {}
        shapes: dict[int, list[int]] = {}
        for replica, stages in enumerate(layout.replicas):
            shapes.setdefault(len(stages.stages), []).append(replica)
        for num_stages, members in shapes.items():
            block = _block(layout, tuple(members), num_stages, 1)
            num_tokens, sum_len_sq = (np.full((len(members), 1), workload[name].mean()) for name in ("num_tokens", "sum_len_sq"))
            forward_s, backward_s, *weight_s = (times[:, :, 0] for times in self._stage_times(block, num_tokens, sum_len_sq, slowdown or {}))
            order = self._order(num_stages, max_microbatches)
            weight = weight_s[0] if weight_s else None
            times = makespans_by_count(self._schedule, forward_s, backward_s, max_microbatches, self._hop_s, order, weight_s=weight)
            found.update(zip(members, times, strict=True))
        return tuple(found[replica] for replica in range(len(layout.replicas)))

    def replica_times(
        self, layout: Layout, replica: int, max_microbatches: int, workload: Rows, slowdown: Mapping[int, float] | None = None
    ) -> Floats:
        """T_i(m) of one replica; see `split_times`, which does all at the price of about one."""
        return self.split_times(layout, max_microbatches, workload, slowdown)[replica]

    def replica_time(self, layout: Layout, replica: int, microbatches: int, workload: Rows, slowdown: Mapping[int, float] | None = None) -> float:
        """T_i(m) for one m; see `split_times`."""
        return float(self.replica_times(layout, replica, microbatches, workload, slowdown)[-1])

    def _walk_s(self, layout: Layout, workload: Rows, slowdown: Mapping[int, float]) -> float:
        """Makespan of the slowest replica."""
        longest = 0.0
        work = _work_of(workload, layout.num_microbatches)
        for block in self._blocks(layout):
            if block.microbatches == 0:
                continue
            forward_s, backward_s, *weight_s = self._block_times(block, layout, *work, slowdown)
            order = self._order(block.num_stages, block.microbatches)
            times = makespans(order, forward_s, backward_s, self._hop_s, weight_s[0] if weight_s else None)
            longest = max(longest, float(times.max()))
        return longest

    def _order(self, num_stages: int, microbatches: int) -> Order:
        """The compiled schedule, made once per shape."""
        key = num_stages, microbatches
        if key not in self._orders:
            self._orders[key] = compile_schedule(schedule_text(self._schedule, num_stages, microbatches))
        return self._orders[key]

    def _block_times(
        self, block: _Block, layout: Layout, num_tokens: Floats, sum_len_sq: Floats, slowdown: Mapping[int, float]
    ) -> tuple[Floats, ...]:
        """Chunk times (lanes, P, m) per phase of a block's replicas, each with its own micro-batches."""
        indices = np.array([list(layout.microbatches_of(replica)) for replica in block.replicas], dtype=np.intp)
        return self._stage_times(block, num_tokens[indices], sum_len_sq[indices], slowdown)

    def _stage_times(self, block: _Block, num_tokens: Floats, sum_len_sq: Floats, slowdown: Mapping[int, float]) -> tuple[Floats, ...]:
        """Chunk times (lanes, P, m) per phase, from work of shape (lanes, m).

        The mates of a stage meet in its collectives, so the slowest of busy + gap sets the pace; transfer is common to all.
        """
        features = self._features(block.units[:, None], num_tokens[block.lanes], sum_len_sq[block.lanes])
        slower = np.array([slowdown.get(int(rank), 1.0) for rank in block.ranks]) if slowdown else np.ones(len(block.ranks))
        ones = np.ones((len(block.ranks), 1))
        sizes = np.diff(np.append(block.stage_firsts, len(block.ranks)))
        found = []
        for phase in self._phases:
            slots = block.ranks * len(PHASES) + phase
            own = self._work.predict(slots, features) * slower[:, None] + self._gap.predict(slots, ones)[:, None]
            transfer = np.add.reduceat(self._meeting.predict(slots, ones), block.stage_firsts) / sizes
            times = np.maximum.reduceat(own, block.stage_firsts, axis=0) + transfer[:, None]
            found.append(times.reshape(len(block.replicas), block.num_stages, num_tokens.shape[1]))
        return tuple(found)

    def _features(self, units: Floats, num_tokens: Floats, sum_len_sq: Floats) -> Floats:
        """(..., 3): one, and the two kinds of work, each about 1 in an ordinary chunk so that the fit is well conditioned."""
        token_scale, pair_scale = self._work_scales or (1.0, 1.0)
        tokens, pairs = units * num_tokens / token_scale, units * sum_len_sq / pair_scale
        return np.stack([np.ones_like(tokens), tokens, pairs], axis=-1)

    def _blocks(self, layout: Layout) -> tuple[_Block, ...]:
        """The layout's replicas by shape; kept for the layout asked about last."""
        if self._blocks_of is None or self._blocks_of[0] is not layout:
            shapes: dict[tuple[int, int], list[int]] = {}
            for d, replica in enumerate(layout.replicas):
                shapes.setdefault((len(replica.stages), replica.microbatches), []).append(d)
            self._blocks_of = layout, tuple(_block(layout, tuple(members), *shape) for shape, members in shapes.items())
        return self._blocks_of[1]


def _block(layout: Layout, replicas: tuple[int, ...], num_stages: int, microbatches: int) -> _Block:
    stages = [(lane, stage) for lane, replica in enumerate(replicas) for stage in layout.replicas[replica].stages]
    if layout.routes or any(not stage.ranks for _, stage in stages):
        raise UserError("the cost model walks each micro-batch at home; a layout with routed micro-batches or an empty stage has no cost here")
    if any(len(stage.chunks) > 1 for _, stage in stages):
        raise UserError("the cost model learns one chunk a stage; a layout with several has no cost here: give each stage one range of layers")
    sizes = [stage.tp_size for _, stage in stages]
    return _Block(
        replicas,
        num_stages,
        microbatches,
        np.array([rank for _, stage in stages for rank in stage.ranks], dtype=np.intp),
        np.array([units for _, stage in stages for units in _stage_units(stage)]),
        np.repeat([lane for lane, _ in stages], sizes),
        np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp),
    )


def _stage_units(stage: Stage) -> list[float]:
    total = sum(stage.shares)
    return [stage.num_layers * share / total for share in stage.shares]


def units_of(layout: Layout) -> Floats:
    """Layers * share of every working rank, indexed by rank."""
    units = np.zeros(max(layout.ranks) + 1)
    for _, _, stage in layout.stages():
        units[list(stage.ranks)] = _stage_units(stage)
    return units


def _work_of(workload: Rows, num_microbatches: int) -> tuple[Floats, Floats]:
    """Tokens and summed squared lengths, indexed by global micro-batch."""
    if len(workload) != num_microbatches:
        raise ValueError(f"the workload has {len(workload)} rows for one iteration of {num_microbatches} micro-batches")
    num_tokens, sum_len_sq = np.zeros(num_microbatches), np.zeros(num_microbatches)
    num_tokens[workload["microbatch"]] = workload["num_tokens"]
    sum_len_sq[workload["microbatch"]] = workload["sum_len_sq"]
    return num_tokens, sum_len_sq


def _slots(rows: Rows) -> Ints:
    """Slot of each chunk row: rank * 3 + (0 forward, 1 backward, 2 weight gradient)."""
    slots: Ints = rows["rank"].astype(np.intp) * len(PHASES) + rows["phase"].astype(np.intp) - Op.FORWARD
    return slots


def _scale_of(work: Floats) -> float:
    return float(work.mean()) or 1.0
