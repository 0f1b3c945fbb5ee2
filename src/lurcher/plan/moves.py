"""What a change of layout moves, and how long training pauses for it: only the state that a rank lacks."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from lurcher.layout import Layout
from lurcher.model.order import Ints
from lurcher.model.rates import Rates
from lurcher.model.stage_table import Bools, Floats
from lurcher.model.traffic import network
from lurcher.plan.holdings import Holdings, holdings, run_layers


class SwitchCosts(msgspec.Struct, frozen=True, kw_only=True):
    """One-off costs, for want of measured ones. The defaults are the papers' order of magnitude."""

    border_s: float = 0.05
    """A change that moves no state and makes no groups: another split, other routes."""
    regroup_s: float = 2.0
    """New process groups. ResiHP: below 2 s."""
    checkpoint_bytes_per_s: float = 2e9
    """Of the whole job, to or from storage."""
    start_s: float = 120.0
    """Starting all processes anew on other machines."""
    lost_iterations: float = 0.0
    """Iterations since the last checkpoint, done again when the last owner of some state is gone."""


class Moves(NamedTuple):
    """Bytes that change ranks, bytes of which no living rank has a copy, and the pause in seconds."""

    bytes_moved: int
    bytes_lost: int
    pause_s: float


class _Pieces(NamedTuple):
    """State that ranks lack: the rank, a run of layers, of each of them the part from `low` to `high` of its atoms, and the rank's replica."""

    target: Ints
    run: Ints
    low: Floats
    high: Floats
    replica: Ints

    def chosen(self, which: Bools | Ints) -> _Pieces:
        """Some of them."""
        return _Pieces(self.target[which], self.run[which], self.low[which], self.high[which], self.replica[which])


class _Transfers(NamedTuple):
    source: Ints
    target: Ints
    num_bytes: Floats


NEGLIGIBLE = 1e-9
"""Parts of a layer below this are rounding."""
MOST_PIECES = 1 << 17
"""Pieces whose sources are looked for at once: memory."""


def state_moves(before: Layout, after: Layout, rates: Rates, costs: SwitchCosts) -> Moves:
    """What going from one layout to the other costs.

    Every rank fetches from the ranks that lived in `before`, its own replica first, what it has not got; all transfers
    run side by side, and the pause ends with the busiest rank's. What no living rank has comes from the checkpoint,
    and then every replica reads it all: one common cut. State bytes are those of `rates.layer_bytes`.
    """
    if _same_stages(before, after):
        return Moves(0, 0, costs.border_s)
    held = holdings(before, after, rates)
    run_bytes = rates.layer_bytes * run_layers(held.cuts, rates)
    transfers: list[_Transfers] = []
    lost = 0.0
    pieces = _lacking(before, after, held)
    for first in range(0, len(pieces.target), MOST_PIECES):
        missing = _fetch(pieces.chosen(np.arange(first, min(first + MOST_PIECES, len(pieces.target)))), held, run_bytes, rates, transfers)
        lost += float((run_bytes[missing.run] * (missing.high - missing.low)).sum())
    moved = _Transfers(*(np.concatenate(columns) for columns in zip(*transfers, strict=True))) if transfers else None
    pause_s = costs.regroup_s + (_transfer_s(moved, rates) if moved else 0.0)
    if lost > 0:
        pause_s += float(run_bytes.sum()) * len(after.replicas) / costs.checkpoint_bytes_per_s
    return Moves(round((float(moved.num_bytes.sum()) if moved else 0.0) + lost), round(lost), pause_s)


def _same_stages(before: Layout, after: Layout) -> bool:
    """Whether only micro-batches and routes differ."""
    return len(before.replicas) == len(after.replicas) and all(a.stages == b.stages for a, b in zip(before.replicas, after.replicas, strict=True))


def _lacking(before: Layout, after: Layout, held: Holdings) -> _Pieces:
    """What the ranks of new stages need and have not got: below and above the part they hold, or all of it."""
    known = {stage for _, _, stage in before.stages()}
    new = np.array([stage not in known for _, _, stage in after.stages()])
    table = held.after.table
    stage, run = np.nonzero(held.after.runs & new[:, None])
    replica = np.searchsorted(table.first_stages, stage, side="right") - 1
    own = table.own[stage]
    cell = np.nonzero(own)[0]
    wanted = _Pieces(table.ranks[stage][own], run[cell], held.after.low[stage][own], held.after.high[stage][own], replica[cell])
    old_low, old_high = held.part_of(wanted.target, wanted.run)
    below = wanted._replace(high=np.minimum(wanted.high, old_low))
    above = wanted._replace(low=np.maximum(wanted.low, old_high))
    pieces = _Pieces(*(np.concatenate(columns) for columns in zip(below, above, strict=True)))
    return pieces.chosen(pieces.high - pieces.low > NEGLIGIBLE)


def _fetch(pieces: _Pieces, held: Holdings, run_bytes: Floats, rates: Rates, transfers: list[_Transfers]) -> _Pieces:
    """Find a living source for every part of the pieces, the own replica first; returns what none has."""
    table, stage_of = held.before.table, held.stage_of
    alive = ~np.isin(table.ranks, list(rates.dead))
    for turn in range(len(stage_of)):
        if not len(pieces.target):
            break
        stage = stage_of[(pieces.replica + turn) % len(stage_of), pieces.run]
        from_low, from_high = np.maximum(pieces.low[:, None], held.before.low[stage]), np.minimum(pieces.high[:, None], held.before.high[stage])
        overlap = table.own[stage] & (from_high - from_low > NEGLIGIBLE)
        given = overlap & alive[stage]
        piece, _ = np.nonzero(given)
        num_bytes = run_bytes[pieces.run[piece]] * (from_high - from_low)[given]
        transfers.append(_Transfers(table.ranks[stage][given], pieces.target[piece], num_bytes))
        dead = overlap & ~given
        left, _ = np.nonzero(dead)
        parts = pieces.chosen(left)._replace(low=from_low[dead], high=from_high[dead])
        empty = pieces.chosen(table.size[stage] == 0)
        pieces = _Pieces(*(np.concatenate(columns) for columns in zip(parts, empty, strict=True)))
    return pieces


def _transfer_s(moved: _Transfers, rates: Rates) -> float:
    """Seconds until the rank that sends or receives most is done."""
    took_s = network(rates).seconds_per_byte(moved.source, moved.target) * moved.num_bytes
    return float(max(np.bincount(moved.source, took_s).max(initial=0.0), np.bincount(moved.target, took_s).max(initial=0.0)))
