"""When every chunk of a pipeline schedule starts and ends: a walk of its text in topological order.

ResiHP eq. 2: a chunk starts when its data has come and its stage is free. F(s, m) needs F(s-1, m), B(s, m) needs
B(s+1, m), each a hop later; each stage works through its text in order. All arrays carry leading lane axes (replicas,
iterations, candidates), so that one walk scores many cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.errors import UserError
from lurcher.model.schedule import Action, ActionKind, parse, schedule_text

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Step(NamedTuple):
    """One action of one stage."""

    stage: int
    kind: ActionKind
    microbatch: int


@dataclass(frozen=True, eq=False)
class _Level:
    """Steps `first` .. `end - 1`, which depend on earlier levels only. Row 0 of the end times is "from the start"."""

    first: int
    end: int
    after: Ints  # row of the stage's previous step
    needs: Ints  # row of the step that sends the data
    hops: Floats  # (steps, 1): 1 where the data crosses stages


@dataclass(frozen=True, eq=False)
class Order:
    """A schedule made ready for walking: its steps in topological order. Depends on the texts only, so callers keep it."""

    num_stages: int
    num_microbatches: int
    steps: tuple[Step, ...]
    durations: Ints  # index of each step's duration in the (kind, stage, micro-batch) array, flattened
    levels: tuple[_Level, ...]
    has_weight: bool

    def rows(self, kind: ActionKind) -> Ints:
        """Index into `steps` of every (stage, micro-batch) of a kind, shape (P, m)."""
        found = np.zeros((self.num_stages, self.num_microbatches), dtype=np.intp)
        for i, step in enumerate(self.steps):
            if step.kind == kind:
                found[step.stage, step.microbatch] = i
        return found


@dataclass(frozen=True, eq=False)
class Timeline:
    """The walked schedule, in seconds from its start. `starts_s` and `ends_s` have shape (lanes..., steps), as `order.steps`."""

    order: Order
    starts_s: Floats
    ends_s: Floats
    makespan_s: Floats  # (lanes...)


def walk(texts: Sequence[str], forward_s: Floats, backward_s: Floats, hop_s: float = 0.0) -> Timeline:
    """Compile and walk at once: for a single look. `forward_s` and `backward_s` have shape (lanes..., P, m), in seconds."""
    return finish_times(compile_schedule(texts), forward_s, backward_s, hop_s)


def compile_schedule(texts: Sequence[str]) -> Order:
    """Put the texts' actions into topological order. Raises UserError for an action that can never run, by its name.

    Steps are numbered as in the (kind, stage, micro-batch) array of durations, flattened: a predecessor is an offset.
    """
    actions = [parse(text) for text in texts]
    num_stages, num_microbatches = len(actions), _check_complete(actions)
    size = num_stages * num_microbatches
    todo = [["FBW".index(kind) * size + stage * num_microbatches + m for kind, m in words] for stage, words in enumerate(actions)]
    rows = [0] * (3 * size)  # row of each step that is done
    durations: list[int] = []
    levels: list[_Level] = []
    position = [0] * num_stages
    last_row = [0] * num_stages
    while len(durations) < sum(len(codes) for codes in todo):
        first = len(durations)
        ready: list[tuple[int, int, float]] = []  # stage, row that its data comes from, hop
        for stage, codes in enumerate(todo):
            if position[stage] == len(codes):
                continue
            code = codes[position[stage]]
            source, hop = _source(code, num_stages, num_microbatches)
            if (source < 0 or rows[source]) and (code < size or rows[code - size]):  # and B after F, W after B of the same stage
                ready.append((stage, rows[source] if source >= 0 else 0, hop))
        if not ready:
            raise UserError(_deadlock(todo, position, rows, num_microbatches))
        after = [last_row[stage] for stage, _, _ in ready]
        for stage, _, _ in ready:
            durations.append(todo[stage][position[stage]])
            rows[durations[-1]] = last_row[stage] = len(durations)
            position[stage] += 1
        needs, hops = [row for _, row, _ in ready], [[hop] for _, _, hop in ready]
        levels.append(_Level(first, len(durations), np.array(after, dtype=np.intp), np.array(needs, dtype=np.intp), np.array(hops)))
    steps = tuple(_step(code, num_stages, num_microbatches) for code in durations)
    has_weight = any(action.kind == "W" for words in actions for action in words)
    return Order(num_stages, num_microbatches, steps, np.array(durations, dtype=np.intp), tuple(levels), has_weight)


def finish_times(order: Order, forward_s: Floats, backward_s: Floats, hop_s: float = 0.0, weight_s: Floats | None = None) -> Timeline:
    """Walk a compiled schedule. Durations have shape (lanes..., P, m), in seconds; `hop_s` is added between stages.

    `weight_s` is needed when the schedule splits the backward pass (W actions).
    """
    if order.has_weight and weight_s is None:
        raise ValueError("the schedule has W actions; weight_s must give their durations")
    parts = [forward_s, backward_s] if weight_s is None else [forward_s, backward_s, weight_s]
    lanes = forward_s.shape[:-2]
    num_lanes = math.prod(lanes)
    flat = [np.asarray(part, dtype=np.float64).reshape(num_lanes, order.num_stages * order.num_microbatches) for part in parts]
    durations = np.ascontiguousarray(np.concatenate(flat, axis=1)[:, order.durations].T)
    starts = np.zeros((len(order.steps), num_lanes))
    ends = np.zeros((len(order.steps) + 1, num_lanes))
    for level in order.levels:
        arrival = ends.take(level.needs, axis=0)
        if hop_s:
            arrival += hop_s * level.hops
        start = np.maximum(arrival, ends.take(level.after, axis=0), out=starts[level.first : level.end])
        np.add(start, durations[level.first : level.end], out=ends[level.first + 1 : level.end + 1])
    shape = (*lanes, len(order.steps))
    return Timeline(order, starts.T.reshape(shape), ends[1:].T.reshape(shape), ends.max(axis=0).reshape(lanes))


def makespans_by_count(
    name: str, forward_s: Floats, backward_s: Floats, max_microbatches: int, hop_s: float = 0.0, order: Order | None = None
) -> Floats:
    """Makespan in seconds for 0 .. `max_microbatches` alike micro-batches, shape (lanes..., max_microbatches + 1), out of ONE walk.

    `forward_s` and `backward_s` have shape (lanes..., P): one chunk of each stage. Equal to walking every count for
    itself. `order` is the compiled schedule of `max_microbatches`, where the caller keeps it.
    """
    lanes, num_stages = forward_s.shape[:-1], forward_s.shape[-1]
    if max_microbatches == 0:
        return np.zeros((*lanes, 1))
    if order is None:
        order = compile_schedule(schedule_text(name, num_stages, max_microbatches))
    shape = (*lanes, num_stages, max_microbatches)
    forward, backward = (np.broadcast_to(np.asarray(t, dtype=np.float64)[..., None], shape) for t in (forward_s, backward_s))
    if name == "gpipe":
        # Micro-batches past the count cost nothing and delay nothing: in GPipe they come last in both passes.
        counted = np.arange(max_microbatches) < np.arange(1, max_microbatches + 1)[:, None, None]
        found = finish_times(order, forward[..., None, :, :] * counted, backward[..., None, :, :] * counted, hop_s).makespan_s
    else:
        ends = finish_times(order, forward, backward, hop_s).ends_s
        found = _drain_1f1b(ends[..., order.rows("F")], ends[..., order.rows("B")], np.asarray(backward_s, dtype=np.float64), hop_s)
    return np.concatenate([np.zeros((*lanes, 1)), found], axis=-1)


def _drain_1f1b(forward_ends: Floats, backward_ends: Floats, backward_s: Floats, hop_s: float) -> Floats:
    """Makespans of 1F1B for m = 1 .. M, from the end times (lanes..., P, M) of the largest.

    A 1F1B schedule of m micro-batches equals the larger one up to each stage's last forward, F(m-1), and the backward
    paired with it; only the P - s - 1 backwards that then drain stage s differ. They are walked for all m at once.
    """
    num_stages, max_m = backward_ends.shape[-2:]
    counts = np.arange(1, max_m + 1)
    drained: list[Floats] = []
    for stage in range(num_stages - 1, -1, -1):
        ahead = num_stages - stage - 1
        paired = backward_ends[..., stage, np.maximum(counts - 1 - ahead, 0)]
        free = np.where(counts > ahead, paired, forward_ends[..., stage, counts - 1])
        here: list[Floats] = []
        for j in range(ahead):
            microbatch = counts - ahead + j
            above = backward_ends[..., stage + 1, np.maximum(microbatch, 0)] if j == 0 else drained[j - 1]
            free = np.where(microbatch >= 0, np.maximum(free, above + hop_s) + backward_s[..., stage, None], free)
            here.append(free)
        drained = here
    return drained[-1] if drained else backward_ends[..., 0, :]


def _source(code: int, num_stages: int, num_microbatches: int) -> tuple[int, float]:
    """The step whose data this one needs (-1 for a forward of the first stage), and 1.0 if the data crosses stages."""
    size = num_stages * num_microbatches
    stage = code % size // num_microbatches
    if code < size:
        return (code - num_microbatches, 1.0) if stage else (-1, 0.0)
    if code < 2 * size and stage < num_stages - 1:
        return code + num_microbatches, 1.0
    return code - size, 0.0


def _step(code: int, num_stages: int, num_microbatches: int) -> Step:
    kinds: tuple[ActionKind, ...] = ("F", "B", "W")
    kind, rest = divmod(code, num_stages * num_microbatches)
    return Step(rest // num_microbatches, kinds[kind], rest % num_microbatches)


def _check_complete(actions: Sequence[tuple[Action, ...]]) -> int:
    """The number of micro-batches; every stage must run F and B of each once, and W of all or of none."""
    num_microbatches = max((action.microbatch + 1 for words in actions for action in words), default=0)
    split = any(action.kind == "W" for words in actions for action in words)
    for stage, words in enumerate(actions):
        if len(set(words)) < len(words):
            twice = next(action for action in words if words.count(action) > 1)
            raise UserError(f"stage {stage} of the schedule runs {twice} twice; each action is run once")
        for kind in ("F", "B", "W") if split else ("F", "B"):
            missing = set(range(num_microbatches)) - {action.microbatch for action in words if action.kind == kind}
            if missing:
                raise UserError(f"stage {stage} of the schedule never runs {kind}{min(missing)}; every stage runs every micro-batch")
    return num_microbatches


def _deadlock(todo: Sequence[Sequence[int]], position: Sequence[int], rows: Sequence[int], num_microbatches: int) -> str:
    """Why nothing can go on: the first stage that stands still, and what it waits for."""
    stage = next(s for s, codes in enumerate(todo) if position[s] < len(codes))
    code = todo[stage][position[stage]]
    source, _ = _source(code, len(todo), num_microbatches)
    if source < 0 or rows[source]:
        source = code - len(todo) * num_microbatches
    waiting, missing = (_step(c, len(todo), num_microbatches) for c in (code, source))
    return (
        f"the schedule deadlocks: {waiting.kind}{waiting.microbatch} of stage {waiting.stage} waits for {missing.kind}{missing.microbatch}"
        f" of stage {missing.stage}, which never runs before it; reorder the two stages' texts"
    )
