"""The least makespan of one pipeline whose stages hold whole layers: a lower bound over all cuts, by the paths of `fill.py`.

One stage may be slower than the others; where it stands and how many layers it gets are free too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lurcher.plan.fill import UNPROVEN

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
PRECISE = 1e-4
"""Of the bound: so much of it may be given away."""


@dataclass(frozen=True)
class Line:
    """A pipeline's sizes. `layer_s` is of the fastest stage there can be, there and back; `launch_s` of a micro-batch on a stage."""

    schedule: str
    num_layers: int
    embed_layers: float
    head_layers: float
    layer_s: float
    launch_s: float
    backward_part: float

    def ends(self, num_stages: int) -> Floats:
        """Embedding and head, in layers, (P,)."""
        found = np.zeros(num_stages)
        found[0] += self.embed_layers
        found[-1] += self.head_layers
        return found


def least_walk(line: Line, num_stages: int, num_microbatches: int, known_s: float, slow_layer_s: float | None = None) -> float:
    """Seconds, without hops, below which no cut of whole layers stays; at least `known_s`.

    With `slow_layer_s` one stage, anywhere, takes that for a layer. A makespan T is possible only if for some cut every stage
    keeps (a), (b) and (c) of `fill.py`. The sum C of the times depends on the slow stage's layers alone; with these fixed, from
    the last stage backwards, the layers behind a stage say all about what it may hold. So all sums of layers that can be
    reached are followed, and T is halved in on.
    """
    if line.schedule in UNPROVEN or num_stages > line.num_layers:
        return known_s if num_stages <= line.num_layers else float("inf")
    cases = _Cases.make(line, num_stages, num_microbatches, slow_layer_s)
    low = known_s
    if len(cases.possible(low)):
        return low
    high = low * 1.05
    while not len(left := cases.possible(high)):
        low, high = high, high * 1.3
    cases = cases.chosen(left)
    while high - low > PRECISE * high:
        middle = (low + high) / 2
        left = cases.possible(middle)
        if len(left):
            cases, high = cases.chosen(left), middle  # the others do not end in less time either
        else:
            low = middle
    return low


@dataclass(frozen=True, eq=False)
class _Cases:
    """Every (place, layers) of the slow stage, B of them; one case with place -1 where none is slow."""

    line: Line
    num_stages: int
    counts: int
    place: Ints  # (B,)
    held: Ints  # (B,) layers of the slow stage
    slow_s: Floats  # (B,) its time
    total_s: Floats  # (B,) of all stages: C

    @classmethod
    def make(cls, line: Line, num_stages: int, counts: int, slow_layer_s: float | None) -> _Cases:
        ends = line.ends(num_stages)
        whole = (line.num_layers + ends.sum()) * line.layer_s + num_stages * line.launch_s
        if slow_layer_s is None:
            none = np.array([-1], dtype=np.intp)
            return cls(line, num_stages, counts, none, np.zeros(1, dtype=np.intp), np.zeros(1), np.array([whole]))
        most = line.num_layers - num_stages + 1
        place, held = (grid.ravel() for grid in np.meshgrid(np.arange(num_stages), np.arange(1, most + 1), indexing="ij"))
        work = held + ends[place]
        return cls(line, num_stages, counts, place, held, line.launch_s + work * slow_layer_s, whole + work * (slow_layer_s - line.layer_s))

    def chosen(self, which: Ints) -> _Cases:
        """Some of them."""
        return replace(self, place=self.place[which], held=self.held[which], slow_s=self.slow_s[which], total_s=self.total_s[which])

    def possible(self, makespan_s: float) -> Ints:
        """Which cases have a cut that may end in time."""
        line, m, stages = self.line, self.counts, self.num_stages
        room = makespan_s - self.total_s
        keep = (room >= -1e-12 * makespan_s) & (m * self.slow_s <= makespan_s)
        if m > 1:
            keep &= self._part() * (m - 1) * self.slow_s <= room
        which = np.flatnonzero(keep)
        place, held, slow_s, room = self.place[which], self.held[which], self.slow_s[which], room[which]
        if not len(which):
            return which
        ends = line.ends(stages)
        sums = np.arange(line.num_layers + 1)
        reached = np.zeros((len(which), line.num_layers + 1), dtype=bool)
        reached[:, 0] = True
        for s in range(stages - 1, -1, -1):
            passed = place > s  # the slow stage lies behind
            others = stages - 1 - s - passed
            head = ends[-1] * (place != stages - 1) if s + 1 < stages else np.zeros(len(which))
            behind = others[:, None] * line.launch_s + (sums + head[:, None]) * line.layer_s + np.where(passed, slow_s, 0.0)[:, None]
            allowed = self._allowed(s, makespan_s, room, behind)
            most = np.floor((allowed - line.launch_s) / line.layer_s - ends[s] + 1e-9).astype(np.intp)
            here = place == s
            after = _follow(reached, np.minimum(most, line.num_layers))
            after[here] = reached[here] & (slow_s[here, None] <= allowed[here])
            reached = after
        return which[reached[np.arange(len(which)), line.num_layers - held]]

    def _part(self) -> float:
        return 1.0 if self.line.schedule == "gpipe" else max(self.line.backward_part, 1.0 - self.line.backward_part)

    def _allowed(self, s: int, makespan_s: float, room: Floats, behind: Floats) -> Floats:
        """The longest that stage s may take, (B, sums), with `behind` seconds in the stages after it."""
        m = self.counts
        allowed = np.full(behind.shape, makespan_s / m)
        if m > 1:
            allowed = np.minimum(allowed, (room / (self._part() * (m - 1)))[:, None])
        ahead = m - self.num_stages + s
        if ahead > 0 and self.line.schedule != "gpipe":
            allowed = np.minimum(allowed, (room[:, None] - behind) / ahead)
        return allowed


def _follow(reached: Bools, most: Ints) -> Bools:
    """Sums of layers after a stage that adds 1 .. `most` to each sum reached before."""
    sums = np.arange(reached.shape[1])
    farthest = np.maximum.accumulate(np.where(reached, sums + most, 0), axis=1)
    after = np.zeros_like(reached)
    after[:, 1:] = farthest[:, :-1] >= sums[1:]
    return after
