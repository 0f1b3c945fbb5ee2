"""Texts for replicas that routes couple: no fixed pattern fits them, so each stage takes what is ready, by the schedule's own rule.

The rule is the schedule's priority (1F1B: a backward before a forward) under its limit of live activations; ties go to the
earlier micro-batch, then to a guest, whose replica is the one in need. What comes out is text, and is executed as such.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lurcher.model.routes import Coupled
from lurcher.model.schedule import SPLIT_BACKWARD, interleaved_groups
from lurcher.model.stage_table import StageTable

_SAME_TIME = 1e-6
"""Events this close, in mean chunk times, are one moment: rounding must not let a forward slip in before a backward."""


@dataclass(frozen=True, eq=False)
class ListSchedule:
    """What came out, per stage of `coupled.stages`: the text, when its last action ends, and the most layers of activations held."""

    texts: tuple[str, ...]
    ends_s: tuple[float, ...]
    live_layers: tuple[float, ...]


class Durations(NamedTuple):
    """What takes how long: `seconds[kind][piece]` and `hops[border]` of the coupled replicas; `layers` of the pieces, ends counted in."""

    seconds: Sequence[Sequence[float]]
    hops: Sequence[float]
    layers: Sequence[float]


def list_schedule(coupled: Coupled, table: StageTable, schedule: str, durations: Durations, limits: Sequence[float]) -> ListSchedule:
    """Run the coupled stages. `limits` are the layers of activations that each of `coupled.stages` may hold.

    Where all stand still, because each could go on only by breaking its limit, one breaks it; `live_layers` tells.
    """
    return _Run(coupled, schedule, durations, limits, _keys(coupled, table)).to_end()


class _Run:
    """One simulation: events are ends of actions and arrivals of data; a visit is numbered over all micro-batches."""

    def __init__(
        self, coupled: Coupled, schedule: str, durations: Durations, limits: Sequence[float], keys: tuple[Sequence[int], Sequence[int]]
    ) -> None:
        site = {stage: i for i, stage in enumerate(coupled.stages)}
        visits = [(i, visit) for i, path in enumerate(coupled.paths) for visit in path]
        self.split, self.forward_first = schedule in SPLIT_BACKWARD, schedule == "gpipe"
        self.limits = [limit * (1 + 1e-9) for limit in limits]
        self.hops = (*durations.hops, 0.0)
        self.keys = (keys[0], keys[1], keys[1])
        self.site = [site[coupled.pieces[visit.piece].stage] for _, visit in visits]
        self.piece = [visit.piece for _, visit in visits]
        self.layers = [durations.layers[piece] for piece in self.piece]
        self.seconds = [[times[piece] for piece in self.piece] for times in durations.seconds]
        self.border = [visit.border for _, visit in visits]  # of the forward into it; -1 is the last: no time
        self.words = [f"{coupled.microbatches[i]}" for i, _ in visits]
        self.chunk = [f"{visit.number or ''}" for _, visit in visits]
        self.is_first, self.is_last = [False] * len(visits), [False] * len(visits)
        number = 0
        for path in coupled.paths:
            self.is_first[number] = self.is_last[number + len(path) - 1] = True
            number += len(path)
        num_sites = len(coupled.stages)
        self.forwards_left = [0] * num_sites
        for at in self.site:
            self.forwards_left[at] += 1
        self.ready: list[list[list[tuple[int, int]]]] = [[[] for _ in range(num_sites)] for _ in range(3)]  # kind, site: (key, visit)
        self.ready_at = [[0.0] * len(visits) for _ in range(3)]
        self.free_at, self.busy = [0.0] * num_sites, [False] * num_sites
        self.held, self.peak = [0.0] * num_sites, [0.0] * num_sites
        self.texts: list[list[str]] = [[] for _ in range(num_sites)]
        self.events: list[tuple[float, int, int]] = []  # time, kind (3 + kind: its data arrives), visit
        every = [time for times in self.seconds for time in times]
        self.moment_s = _SAME_TIME * sum(every) / max(len(every), 1)

    def to_end(self) -> ListSchedule:
        for visit, first in enumerate(self.is_first):
            if first:
                self.arrive(0, visit, 0.0)
        touched = set(self.site)
        while True:
            for site in sorted(touched):
                if not self.busy[site]:
                    self.choose(site)
            if not self.events and not self.force():
                break
            touched = self.next_moment()
        return ListSchedule(tuple(" ".join(words) for words in self.texts), tuple(self.free_at), tuple(self.peak))

    def next_moment(self) -> set[int]:
        """Take all events of the next moment; the sites where something changed."""
        touched = set()
        until_s = self.events[0][0] + self.moment_s
        while self.events and self.events[0][0] <= until_s:
            time_s, kind, visit = heapq.heappop(self.events)
            if kind >= 3:
                self.arrive(kind - 3, visit, time_s)
                touched.add(self.site[visit])
            else:
                touched |= self.finish(kind, visit, time_s)
        return touched

    def finish(self, kind: int, visit: int, time_s: float) -> set[int]:
        """An action ends: its site is free, its result is on the way."""
        site = self.site[visit]
        self.busy[site], touched = False, {site}
        if kind == (2 if self.split else 1):
            self.held[site] -= self.layers[visit]
        if kind == 0 and not self.is_last[visit]:
            touched.add(self.send(0, visit + 1, self.border[visit + 1], time_s))
        elif kind == 0:
            self.arrive(1, visit, time_s)
        elif kind == 1:
            if not self.is_first[visit]:
                touched.add(self.send(1, visit - 1, self.border[visit], time_s))
            if self.split:
                self.arrive(2, visit, time_s)
        return touched

    def send(self, kind: int, visit: int, border: int, time_s: float) -> int:
        """Data for an action: there at once, or after the hop. Returns the site it goes to."""
        if self.hops[border] > 0:
            heapq.heappush(self.events, (time_s + self.hops[border], 3 + kind, visit))
        else:
            self.arrive(kind, visit, time_s)
        return self.site[visit]

    def arrive(self, kind: int, visit: int, time_s: float) -> None:
        self.ready_at[kind][visit] = time_s
        heapq.heappush(self.ready[kind][self.site[visit]], (self.keys[kind][visit], visit))

    def choose(self, site: int) -> None:
        """Start what comes first by the schedule's rule, if anything may start."""
        forwards, backwards, weights = self.ready[0][site], self.ready[1][site], self.ready[2][site]
        if backwards and not (self.forward_first and self.forwards_left[site]):
            self.start(1, heapq.heappop(backwards)[1])
        elif forwards and self.held[site] + self.layers[forwards[0][1]] <= self.limits[site]:
            self.start(0, heapq.heappop(forwards)[1])
        elif weights:
            self.start(2, heapq.heappop(weights)[1])

    def force(self) -> bool:
        """Where everything stands still, let the first forward in line break its site's limit. False when all is done."""
        waiting = [(ready[0], site) for site, ready in enumerate(self.ready[0]) if ready]
        if waiting:
            _, site = min(waiting)
            self.start(0, heapq.heappop(self.ready[0][site])[1])
        return bool(waiting)

    def start(self, kind: int, visit: int) -> None:
        site = self.site[visit]
        begin_s = max(self.free_at[site], self.ready_at[kind][visit])
        self.free_at[site] = begin_s + self.seconds[kind][visit]
        self.busy[site] = True
        self.texts[site].append(f"{self.chunk[visit]}{'FBW'[kind]}{self.words[visit]}")
        if kind == 0:
            self.forwards_left[site] -= 1
            self.held[site] += self.layers[visit]
            self.peak[site] = max(self.peak[site], self.held[site])
        heapq.heappush(self.events, (self.free_at[site], kind, visit))


def _keys(coupled: Coupled, table: StageTable) -> tuple[list[int], list[int]]:
    """Priorities of all visits, forward and backward, as ranks: interleaved by group and chunk, then by micro-batch, guests first."""
    counts = Counter(coupled.homes)
    num_stages = {d: int(table.first_stages[d + 1] - table.first_stages[d]) for d in coupled.replicas}
    groups = {d: [0] * counts[d] for d in coupled.replicas}
    for d in coupled.replicas:
        if table.first_rows[d + 1] - table.first_rows[d] > num_stages[d]:
            groups[d] = [g for g, members in enumerate(interleaved_groups(num_stages[d], counts[d])) for _ in members]
    first: dict[int, int] = {}
    forward, backward = [], []
    for i, (path, home) in enumerate(zip(coupled.paths, coupled.homes, strict=True)):
        local = i - first.setdefault(home, i)
        for visit in path:
            piece = coupled.pieces[visit.piece]
            d = coupled.place(piece.stage)[0]
            chunk = (piece.row - int(table.first_rows[d])) // num_stages[d]
            forward.append((groups[home][local], chunk, local, d == home, home))
            backward.append((groups[home][local], -chunk, local, d == home, home))
    return _ranks(forward), _ranks(backward)


def _ranks(keys: Sequence[tuple[int, ...]]) -> list[int]:
    place = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [place[key] for key in keys]
