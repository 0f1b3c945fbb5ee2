"""Stage-level micro-batch migration: single stages of single micro-batches run in another replica.

Two ways. `algorithm_1` is ResiHP's Algorithm 1 as published: it looks at progress only. `propose_migration`
keeps what lowers the price, in which the routed schedule is run: so each move is credited to both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from lurcher.layout import Layout, Route
from lurcher.model.price import price, price_many
from lurcher.model.stage_table import Floats
from lurcher.plan.cut_times import cut_times
from lurcher.plan.edit import At
from lurcher.plan.resplit import best_split, split_action
from lurcher.plan.routing import replica_speeds, with_routes
from lurcher.plan.situation import LEAST_GAIN, Candidate, Situation, improvements
from lurcher.plan.tensor_group import affected
from lurcher.records import Action, Plan

MOST_NUMBERS = 16
"""Numbers of leaving micro-batches that are priced for a stage at first; the best is not where the first neighbour ceases to be better."""
NEIGHBOURS = (-4, -2, -1, 1, 2, 4)
"""Later changes of a number."""


def algorithm_1(ends_s: Sequence[Floats], delta: int = 0, *, credited: bool = False) -> tuple[tuple[int, int, int], ...]:
    """ResiHP's Algorithm 1 for one stage of D replicas: the moves (replica, micro-batch, target), in order.

    `ends_s[d][j]` is when replica d ends the stage's forward of its micro-batch j in the simulated schedule, infinite where
    the stage has stopped. In order of time, P_d counts what replica d has finished; whenever max P - min P > `delta`, or the
    slowest has stopped, the next pending micro-batch of the slowest goes to the fastest. The paper leaves open what
    "update P" counts. Not `credited`: what the schedule has finished, moved ones not among them. `credited`: a move also
    counts at once, one more for the source and one less for the target; without that, mild slowness is made worse by far
    too many moves. No default of `delta` is given; the paper's example uses 0. The memory check is the price's.
    """
    counted = np.zeros(len(ends_s), dtype=np.int64)
    moved: list[set[int]] = [set() for _ in ends_s]
    moves: list[tuple[int, int, int]] = []

    def move(slowest: int, microbatch: int) -> None:
        fastest = int(np.argmax(np.where(stopped, np.iinfo(np.int64).min, counted)))
        moved[slowest].add(microbatch)
        moves.append((slowest, microbatch, fastest))
        if credited:
            counted[slowest] += 1
            counted[fastest] -= 1

    stopped = np.array([not np.isfinite(ends).any() for ends in ends_s])
    for now_s, d, j in sorted((float(end_s), d, j) for d, ends in enumerate(ends_s) for j, end_s in enumerate(ends) if np.isfinite(end_s)):
        counted[d] += j not in moved[d]
        slowest = int(np.argmin(counted))
        pending = [k for k, end_s in enumerate(ends_s[slowest]) if end_s > now_s and k not in moved[slowest]]
        if pending and (stopped[slowest] or counted[~stopped].max() - counted[slowest] > delta):
            move(slowest, pending[0])
    for d in np.flatnonzero(stopped).tolist() if not stopped.all() else ():
        for j in range(len(ends_s[d])):
            if j not in moved[d]:
                move(d, j)
    return tuple(moves)


def published(situation: Situation, delta: int = 0, *, credited: bool = False) -> Candidate:
    """What Algorithm 1 does to the present layout, stage by stage; no action where it moves nothing, or replicas are cut differently."""
    layout = situation.layout
    cuts = {tuple(stage.chunks for stage in replica.stages) for replica in layout.replicas}
    if len(cuts) > 1 or any(len(stage.chunks) > 1 for _, _, stage in layout.stages()):
        return Candidate(layout, ())
    sizes = [stage.num_layers for stage in layout.replicas[0].stages]
    ends_s = [times.forward_ends(times.order(), sizes) for times in cut_times(layout, situation.rates, situation.schedule)]
    routes = [
        Route(layout.microbatches_of(d)[j], layout.replicas[d].stages[s].chunks[0], target, s)
        for s in range(len(sizes))
        for d, j, target in algorithm_1([ends[s] for ends in ends_s], delta, credited=credited)
    ]
    routed = msgspec.structs.replace(layout, routes=tuple(sorted(routes)))
    text = f"run {len(routes)} stages of micro-batches elsewhere by ResiHP's Algorithm 1, delta {delta}"
    return Candidate(routed, (Action("migrate", text),) if routes else ())


def propose_migration(situation: Situation) -> tuple[Plan, ...]:
    """Micro-batches of slow stages run elsewhere, from the present split and from the best one. Replaces the present routes.

    None where a stage is empty, whose routes must stay, or where there is only one replica.
    """
    layout = situation.layout
    if not situation.answers("migrate") or len(layout.replicas) < 2 or any(not stage.ranks for _, _, stage in layout.stages()):
        return ()
    starts = [layout.split, best_split(situation, layout)] if situation.answers("split") else [layout.split]
    candidates = []
    for split in dict.fromkeys(starts):
        counts, found = _climb(situation, layout if split == layout.split else layout.with_split(split))
        if counts:
            words = ", ".join(f"{count} of replica {d} stage {s}" for (d, s), count in counts.items())
            action = Action("migrate", f"run micro-batches elsewhere: {words}")
            candidates.append(Candidate(found, (action, *split_action(layout.split, split))))
    candidates += [published(situation, delta, credited=True) for delta in (0, 1)]
    return improvements(situation, candidates)


def _climb(situation: Situation, layout: Layout) -> tuple[dict[At, int], Layout]:
    """How many micro-batches of each affected stage leave: one stage's number at a time is changed, for as long as the price falls.

    Looked at are the affected stages of the slowest replica, and those that give already: no other can lower the price.
    """
    rates, schedule = situation.rates, situation.schedule
    speeds = replica_speeds(situation, layout.replicas)
    places = [at for at, _ in affected(situation)]
    counts: dict[At, int] = {}
    best, best_price = layout, price(layout, rates, schedule)
    while True:
        slowest = int(np.argmax(best_price.pipeline_s))
        tried: list[tuple[dict[At, int], Layout]] = []
        for at in places:
            if at[0] != slowest and not counts.get(at):
                continue
            for count in _numbers(layout.split[at[0]], counts.get(at, 0)):
                changed = {**counts, at: count}
                routed = with_routes(layout, layout.replicas, changed, speeds)
                if routed is not None:
                    tried.append((changed, routed))
        found = price_many([routed for _, routed in tried], rates, schedule) if tried else ()
        fitting = [k for k, one in enumerate(found) if one.fits]
        i = min(fitting, key=lambda k: (float(f"{found[k].iteration_s:.9g}"), k), default=-1)
        if i < 0 or not found[i].iteration_s < best_price.iteration_s * (1 - LEAST_GAIN):
            return {at: count for at, count in counts.items() if count}, best
        (counts, best), best_price = tried[i], found[i]


def _numbers(microbatches: int, present: int) -> list[int]:
    """Numbers to try: at first all of few, or some evenly spaced ones of many; then the neighbours of the present one."""
    if present:
        near = (present + step for step in NEIGHBOURS)
        return [count for count in near if 0 <= count <= microbatches]
    return sorted({microbatches * k // MOST_NUMBERS for k in range(1, MOST_NUMBERS + 1)} - {0})
