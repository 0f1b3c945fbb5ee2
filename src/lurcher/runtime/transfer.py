"""Which atoms must move from one layout to the next: the least that the ranks lack. Torch-free and pure.

An owner in the new layout that holds an atom already keeps it. Every other owner gets it once, from one rank that holds it,
so the bytes moved are the least possible: what each rank lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from lurcher.errors import LurcherError
from lurcher.runtime.owners import Slice

STATES = ("param", "exp_avg", "exp_avg_sq")
"""What moves with an atom: its parameters and both moments of AdamW. Gradients do not; an iteration's end is where layouts change."""


class Move(NamedTuple):
    """`source` sends its copy of the atoms of `piece` to `target`. `piece.owners` are those of the layout that was."""

    source: int
    target: int
    piece: Slice


def least_moves(before: Sequence[Slice], after: Sequence[Slice], sizes: dict[str, int]) -> tuple[Move, ...]:
    """Every move that the layout with slices `after` needs, in canonical order; the same on all ranks.

    `sizes` are elements per atom by tensor. Among the ranks that hold an atom the one that has least to send so far sends it.
    Raises LurcherError with the atoms that nobody holds.
    """
    moves: list[Move] = []
    sent: dict[int, int] = {}
    held = _by_tensor(before)
    for piece in after:
        for part in _parts(piece, held.get(piece.tensor, ())):
            for target in piece.owners:
                if target in part.owners:
                    continue
                source = min(part.owners, key=lambda rank: (sent.get(rank, 0), rank))
                sent[source] = sent.get(source, 0) + (part.end - part.first) * sizes[part.tensor]
                moves.append(Move(source, target, part))
    return tuple(moves)


def without(slices: Sequence[Slice], lost: Collection[int]) -> tuple[Slice, ...]:
    """The slices as the ranks hold them that are not `lost`; what no other rank holds is left out."""
    left = (Slice(piece.tensor, piece.first, piece.end, tuple(rank for rank in piece.owners if rank not in lost)) for piece in slices)
    return tuple(piece for piece in left if piece.owners)


def _by_tensor(slices: Sequence[Slice]) -> dict[str, list[Slice]]:
    found: dict[str, list[Slice]] = {}
    for piece in slices:
        found.setdefault(piece.tensor, []).append(piece)
    return found


def _parts(piece: Slice, held: Sequence[Slice]) -> list[Slice]:
    """`piece` cut where the owners that were change; each part with them."""
    inside = sorted({cut for old in held for cut in (old.first, old.end) if piece.first < cut < piece.end})
    parts = []
    for first, end in pairwise((piece.first, *inside, piece.end)):
        owners = next((old.owners for old in held if old.first <= first and end <= old.end), ())
        if not owners:
            raise LurcherError(f"no rank holds {piece.tensor}[{first}:{end}] any more; it can only come from a checkpoint")
        parts.append(Slice(piece.tensor, first, end, owners))
    return parts
