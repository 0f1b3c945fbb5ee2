"""Carry a rank's state from one layout to the next: what it has is copied, what it lacks comes from others, into staging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import torch

from lurcher.runtime.backend import Link
from lurcher.runtime.owners import Slice
from lurcher.runtime.pieces import Piece, pass_pieces, pieces_of
from lurcher.runtime.storage import State
from lurcher.runtime.transfer import STATES, Move

Source = Callable[[Slice], State]
"""Where a rank has the atoms of a slice: in its state, or in what it kept of a cut."""


def partners_of(moves: Sequence[Move], rank: int) -> tuple[int, ...]:
    """The ranks that `rank` sends to or receives from, sorted."""
    return tuple(sorted({m.source for m in moves if m.target == rank} | {m.target for m in moves if m.source == rank}))


def refill(new: State, source: Source, have: Sequence[Slice], moves: Sequence[Move], rank: int, connect: Callable[[Collection[int]], Link]) -> int:
    """Fill `new` with what this rank has, the slices `have`, and with what moves to it; give others what moves to them. Returns the bytes received."""
    keep(source, new, have)
    partners = partners_of(moves, rank)
    if not partners:
        return 0
    links = connect(partners)
    try:
        num_bytes = exchange(source, new, moves, rank, links)
        links.complete()
        return num_bytes
    finally:
        links.close()


def keep(source: Source, new: State, before: Sequence[Slice]) -> None:
    """Copy what `new` holds of the slices `before`, which this rank has."""
    new_held = {h.spec.name: h for h in new.held}
    for piece in before:
        held = new_held.get(piece.tensor)
        if held is None or max(piece.first, held.first) >= min(piece.end, held.end):
            continue
        part = msgspec.structs.replace(piece, first=max(piece.first, held.first), end=min(piece.end, held.end))
        old = source(part)
        old_span, new_span = slice(*old.span(part)), slice(*new.span(part))
        for name in STATES:
            getattr(new, name)[new_span] = getattr(old, name)[old_span]


def exchange(source: Source, new: State, moves: Sequence[Move], rank: int, links: Link) -> int:
    """Send what others lack and receive what this rank does. Returns the bytes received."""
    outgoing, incoming = defaultdict(list), defaultdict(list)
    for move in moves:
        if move.source == rank:
            outgoing[move.target].append(_values(source(move.piece), move.piece))
        elif move.target == rank:
            incoming[move.source].append(_values(new, move.piece))
    return pass_pieces(links, _in_pieces(outgoing), _in_pieces(incoming))


def _values(state: State, piece: Slice) -> tuple[torch.Tensor, ...]:
    """The slice's part of each kind of state, flat."""
    span = slice(*state.span(piece))
    return tuple(getattr(state, name)[span] for name in STATES)


def _in_pieces(by_rank: Mapping[int, Sequence[tuple[torch.Tensor, ...]]]) -> dict[int, list[Piece]]:
    """One kind of state after the other."""
    return {rank: pieces_of([part for kind in zip(*slices, strict=True) for part in kind]) for rank, slices in by_rank.items()}
