"""Kept event windows as bars: who computed, transferred and waited when, in one iteration before, during and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lurcher.records import Op, Place
from lurcher.report.chart import MAX_RANKS
from lurcher.report.load import Facts
from lurcher.report.ranks import ranks_to_draw

PANELS = (("healthy", "before"), ("slow", "while slow"), ("mitigated", "after the change"))
CHUNKS = {int(Op.FORWARD): "forward", int(Op.BACKWARD): "backward", int(Op.WEIGHT): "weight"}
COLLECTIVES = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.BROADCAST, Op.ALL_TO_ALL, Op.BARRIER)


@dataclass(frozen=True)
class Bar:
    """A stretch of one rank's iteration, in seconds since its start."""

    rank: int
    kind: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One iteration's pipeline."""

    title: str
    iteration: int
    length_s: float
    bars: tuple[Bar, ...]


def panels(facts: Facts) -> list[Panel]:
    """The windows to draw: the first healthy one, the last slow (else suspect) one, the first after the change."""
    found = []
    for label, title in PANELS:
        kept = [w for w in facts.windows if w[1] == label and len(w[2])]
        if not kept and label == "slow":
            kept = [w for w in facts.windows if w[1] == "suspect" and len(w[2])]
        if kept:
            iteration, _, events = kept[-1] if label == "slow" else kept[0]
            found.append(panel(title, iteration, events, facts))
    return found


def panel(title: str, iteration: int, events: np.ndarray, facts: Facts) -> Panel:
    """Bars of the ranks to draw, with the hosts' clocks set against each other by the iteration's common end."""
    start_s, end_s = aligned(events, facts.places)
    wait_s = collective_waits(events)
    drawn = np.isin(events["rank"], ranks_to_draw(facts.layout, facts.suspects, MAX_RANKS)) & (events["op"] != Op.PAUSE)
    bars = []
    for event, start, end, waited in zip(events[drawn], start_s[drawn], end_s[drawn], wait_s[drawn], strict=True):
        bars += _bars(event, float(start), float(end), float(waited))
    bars.sort(key=lambda bar: bar.kind in ("wait", "transfer"))  # these lie inside chunks and are drawn over them
    return Panel(title, iteration, float(end_s.max()), tuple(bars))


def aligned(events: np.ndarray, places: dict[int, Place]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of every event in seconds since the iteration's start.

    Clocks of different hosts are never compared: each host's are shifted so that the end of its last COMMIT_WAIT (the
    sealed decision reaches all ranks together), or of its last event where there is none, falls on the same instant.
    """
    hosts = np.array([places[r].host if r in places else str(r) for r in events["rank"].tolist()])
    ends = np.zeros(len(events), np.int64)
    for host in np.unique(hosts):
        here = hosts == host
        commits = here & (events["op"] == Op.COMMIT_WAIT)
        ends[here] = events["end_ns"][commits if commits.any() else here].max()
    start, end = events["start_ns"] - ends, events["end_ns"] - ends
    return (start - start.min()) / 1e9, (end - start.min()) / 1e9


def collective_waits(events: np.ndarray) -> np.ndarray:
    """Seconds each synchronising collective waited for its last arriver: own duration - shortest in the group. 0 for the rest.

    Clock-free, and sound only for collectives that end together (DESIGN section 6); sends and receives are not among them.
    """
    duration = (events["end_ns"] - events["start_ns"]) / 1e9
    waits = np.zeros(len(events))
    synchronising = np.flatnonzero(np.isin(events["op"], COLLECTIVES))
    if not len(synchronising):
        return waits
    keys = np.stack([events[name][synchronising].astype(np.int64) for name in ("group", "op", "seq")])
    _, member, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    shortest = np.full(len(count), np.inf)
    np.minimum.at(shortest, member.ravel(), duration[synchronising])
    waits[synchronising] = np.where(count[member.ravel()] > 1, duration[synchronising] - shortest[member.ravel()], 0.0)
    return waits


def _bars(event: Any, start: float, end: float, waited: float) -> list[Bar]:
    rank, op = int(event["rank"]), int(event["op"])
    if op in CHUNKS:
        return [Bar(rank, CHUNKS[op], start, end, f"micro-batch {int(event['seq'])}")]
    if op in (Op.OPTIMIZER, Op.INPUT):
        return [Bar(rank, "other", start, end, Op(op).name.lower())]
    if op == Op.RECV:
        return [Bar(rank, "receive", start, end, f"from rank {int(event['peer'])}")]
    if op == Op.COMMIT_WAIT:
        return [Bar(rank, "wait", start, end, "for the commit")]
    if op not in COLLECTIVES:
        return []
    name = Op(op).name.lower().replace("_", "-")
    return [Bar(rank, "wait", start, start + waited, f"{name}: waiting for the last to arrive"), Bar(rank, "transfer", start + waited, end, name)]
