"""What one rank keeps of the last two cuts: its own state, and that of the rank that it is the holder of.

Two, because a cut counts only once every rank has it, and until then the one before does. Buffers of a cut that is given up are
written again by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from lurcher.config import ModelSection
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.runtime.backend import Link
from lurcher.runtime.messages import Cut
from lurcher.runtime.owners import Slice, slices_of
from lurcher.runtime.pieces import Piece, pass_pieces, pieces_of
from lurcher.runtime.shapes import Held, held_tensors
from lurcher.runtime.storage import State, arranged
from lurcher.runtime.transfer import STATES


class KeptCut(NamedTuple):
    """One cut as one rank has it; `other` is None where it is nobody's holder."""

    iteration: int
    generation: int
    own: State
    other: State | None

    def source(self, piece: Slice) -> State:
        """Where the atoms of a slice of the cut are."""
        if self.own.has(piece) or self.other is None:
            return self.own
        return self.other

    @property
    def num_bytes(self) -> int:
        """Memory of both."""
        return self.own.num_bytes + (self.other.num_bytes if self.other is not None else 0)


class Kept:
    """The cuts of `rank`: `keep` at a border, `confirm` after the next committed iteration, `find` when all must go back."""

    def __init__(self, model: ModelSection, rank: int) -> None:
        self._model, self._rank = model, rank
        self._complete: KeptCut | None = None
        self._latest: KeptCut | None = None  # kept here; whether by all is not known yet
        self._spare: KeptCut | None = None  # given up; its buffers are written next
        self._can_confirm = False

    @property
    def num_bytes(self) -> int:
        """Memory that the cuts take."""
        return sum(cut.num_bytes for cut in (self._complete, self._latest, self._spare) if cut is not None)

    def keep(self, iteration: int, layout: Layout, slices: Sequence[Slice], state: State, holders: Mapping[int, int], links: Link | None) -> int:
        """Keep `state`, send it to this rank's holder, and keep what comes from its ward, whose holder it is. Returns the bytes received.

        Where a peer dies meanwhile the complete cut is untouched.
        """
        spare, self._latest, self._spare, self._can_confirm = self._latest or self._spare, None, None, False
        own = _buffers(spare.own if spare else None, state.held, state.param.dtype)
        own.copy_from(state)
        other = None
        if links is not None:
            ward = next(rank for rank, holder in holders.items() if holder == self._rank)
            held = arranged(held_tensors(self._model, layout, ward), slices_of(slices, ward))
            other = _buffers(spare.other if spare else None, held, state.param.dtype)
            pass_pieces(links, {holders[self._rank]: _pieces(own)}, {ward: _pieces(other)})
            links.complete()
        self._latest, self._can_confirm = KeptCut(iteration, layout.generation, own, other), True
        return other.num_bytes if other is not None else 0

    def confirm(self) -> None:
        """An iteration that began after the last `keep` was committed, so all ranks have that cut: the one before it is given up."""
        if self._latest is not None and self._can_confirm:
            self._complete, self._latest, self._spare = self._latest, None, self._complete

    def doubt(self) -> None:
        """Ranks are lost: some may lack the last cut, so that no later iteration can confirm it."""
        self._can_confirm = False

    def find(self, cut: Cut) -> KeptCut:
        """What this rank has of a cut; LurcherError where that is nothing."""
        kept = self._of(cut)
        if kept is None:
            raise LurcherError(f"rank {self._rank} has not kept the state after {cut.iteration} iterations of generation {cut.layout.generation}")
        return kept

    def go_back(self, cut: Cut) -> None:
        """The training goes on from this cut: one that came later is of an iteration that will be computed again."""
        self._complete, self._latest, self._spare = self._of(cut), None, None

    def _of(self, cut: Cut) -> KeptCut | None:
        asked = (cut.iteration, cut.layout.generation)
        return next((kept for kept in (self._complete, self._latest) if kept is not None and (kept.iteration, kept.generation) == asked), None)


def _pieces(state: State) -> list[Piece]:
    """All of a state; none of a rank that holds nothing."""
    return pieces_of([getattr(state, name) for name in STATES])


def _buffers(spare: State | None, held: Sequence[Held], dtype: torch.dtype) -> State:
    """A state to be written: the spare one where it holds the same."""
    if spare is not None and spare.held == tuple(held):
        return spare
    return State(held, dtype)
