"""Checkpoint and restart on healthy nodes, GREYHOUND's S4: cures everything, and costs the most."""

from __future__ import annotations

import msgspec

from lurcher.model.price import price
from lurcher.plan.situation import LEAST_GAIN, Situation
from lurcher.records import Action, Plan


def propose_restart(situation: Situation) -> tuple[Plan, ...]:
    """The same layout on other nodes in place of those with a slow or dead part; none without enough spare nodes.

    The pause writes the state out and reads it in again, at the storage's rate, and starts the processes. With a dead rank at
    work nothing new can be written: then the last checkpoint counts, and what was done since is done again.
    """
    if not situation.answers("restart") or not situation.spare_nodes:
        return ()
    ill = ill_nodes(situation)
    if not 0 < len(ill) <= situation.spare_nodes:
        return ()
    rates, costs, layout = situation.rates, situation.costs, situation.layout
    healed = msgspec.structs.replace(
        rates,
        slowdown={rank: slowdown for rank, slowdown in rates.slowdown.items() if rates.node(rank) not in ill},
        dead=tuple(rank for rank in rates.dead if rates.node(rank) not in ill),
        links=tuple(link for link in rates.links if link.slowdown <= 1.0),
    )
    found = price(layout, healed, situation.schedule)
    predicted_s = found.iteration_s
    if not found.fits or not predicted_s < situation.present_s * (1 - LEAST_GAIN):
        return ()
    state_bytes = rates.layer_bytes * (layout.num_layers + rates.embed_layers + rates.head_layers)
    lost = bool(situation.dead_at_work())
    io_s = state_bytes / costs.checkpoint_bytes_per_s
    pause_s = costs.start_s + io_s + (costs.lost_iterations * predicted_s if lost else io_s)
    words = f"restart on {len(ill)} other node{'s' * (len(ill) > 1)} in place of {', '.join(map(str, sorted(ill)))}"
    begun = "from the last checkpoint" if lost else "with a checkpoint now"
    reason = f"{words}, {begun}: predicted {predicted_s:.3f} s an iteration, for a pause of {pause_s:.0f} s"
    after = msgspec.structs.replace(layout, generation=layout.generation + 1)
    bound_s = min(situation.bound_s, predicted_s)
    return (Plan(after, (Action("restart", words),), situation.present_s, predicted_s, bound_s, pause_s, round(state_bytes), reason),)


def ill_nodes(situation: Situation) -> frozenset[int]:
    """Nodes to leave: those of slow or dead working ranks, and one end of every slow link, the one that most of them share."""
    rates = situation.rates
    at_work = frozenset(situation.layout.ranks)
    ill = {rates.node(r) for r in at_work if rates.rank_slowdown(r) > 1.0}
    open_links = []
    for link in rates.links:
        ends = [end if link.kind == "node" else rates.node(end) for end in (link.a, link.b) if end >= 0]
        if link.slowdown > 1.0 and ill.isdisjoint(ends):
            open_links.append(ends)
    while open_links:
        named = sorted(end for ends in open_links for end in ends)
        worst = max(dict.fromkeys(named), key=named.count)
        ill.add(worst)
        open_links = [ends for ends in open_links if worst not in ends]
    return frozenset(ill)
