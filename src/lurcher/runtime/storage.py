"""The state of one rank: parameters, gradients and AdamW's moments, each one flat tensor, with a view per tensor.

Flat, because then a whole optimizer step is a handful of calls, and an owner set's gradients are one contiguous piece that
is summed in place wherever replicas cut alike: tensors are arranged split ones first, then by owner set.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lurcher.config import ModelSection
from lurcher.runtime.initial import initial_values
from lurcher.runtime.owners import Slice
from lurcher.runtime.shapes import Held
from lurcher.runtime.transfer import STATES


class State:
    """What of the training lasts from one iteration to the next: flat `param`, `exp_avg`, `exp_avg_sq`, undefined until they are written.

    `held` is what they hold, in that order, as `arranged` gives it. The first `num_split` elements are split tensors (they decay),
    the rest is held whole by every rank of the stage (norms).
    """

    def __init__(self, held: Sequence[Held], dtype: torch.dtype) -> None:
        self.held = tuple(held)
        self.num_elements = sum(h.num_elements for h in self.held)
        self.num_split = sum(h.num_elements for h in self.held if h.spec.split)
        self.param = torch.empty(self.num_elements, dtype=dtype)
        self.exp_avg = torch.empty(self.num_elements, dtype=dtype)
        self.exp_avg_sq = torch.empty(self.num_elements, dtype=dtype)
        self._start: dict[str, int] = {}
        start = 0
        for h in self.held:
            self._start[h.spec.name] = start
            start += h.num_elements
        self._by_name = {h.spec.name: h for h in self.held}

    @property
    def num_bytes(self) -> int:
        """Memory of the three."""
        return self.num_elements * self.param.element_size() * len(STATES)

    def copy_from(self, other: State) -> None:
        """Take the values of a state that holds the same."""
        for name in STATES:
            getattr(self, name).copy_(getattr(other, name))

    def has(self, piece: Slice) -> bool:
        """Whether all atoms of the slice are here."""
        held = self._by_name.get(piece.tensor)
        return held is not None and held.first <= piece.first and piece.end <= held.end

    def span(self, piece: Slice) -> tuple[int, int]:
        """(start, end) of a slice that is here, in elements of the flat tensors."""
        held = self._by_name[piece.tensor]
        start = self._start[piece.tensor] + (piece.first - held.first) * held.spec.atom_size
        return start, start + (piece.end - piece.first) * held.spec.atom_size

    def spans(self, pieces: Sequence[Slice]) -> list[tuple[int, int]]:
        """The slices' spans in the order given, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for start, end in map(self.span, pieces):
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined

    def shape(self, piece: Slice) -> tuple[int, ...]:
        """Shape of a slice that is here, atom dimension first."""
        spec = self._by_name[piece.tensor].spec
        return (piece.end - piece.first, *spec.atom_shape) if spec.split else spec.atom_shape


class Storage(State):
    """The state that a rank works on, and its flat `grad`, which is zero; `weight` and `weight_grad` are views by tensor name."""

    def __init__(self, held: Sequence[Held], slices: Sequence[Slice], dtype: torch.dtype) -> None:
        super().__init__(arranged(held, slices), dtype)
        self.grad = torch.zeros(self.num_elements, dtype=dtype)
        self.weight: dict[str, torch.Tensor] = {}
        self.weight_grad: dict[str, torch.Tensor] = {}
        for h in self.held:
            span = slice(self._start[h.spec.name], self._start[h.spec.name] + h.num_elements)
            self.weight[h.spec.name] = self.param[span].view(h.shape)
            self.weight_grad[h.spec.name] = self.grad[span].view(h.shape)

    def fill_initial(self, model: ModelSection, seed: int) -> None:
        """Give every parameter its initial value; the moments are zero."""
        for h in self.held:
            self.weight[h.spec.name].copy_(torch.from_numpy(initial_values(model, seed, h)))
        self.exp_avg.zero_()
        self.exp_avg_sq.zero_()


def arranged(held: Sequence[Held], slices: Sequence[Slice]) -> tuple[Held, ...]:
    """Split tensors first, then tensors of one owner set together; the sort is stable, so the canonical order stays inside."""
    owners: dict[str, tuple[int, ...]] = {}
    for piece in slices:
        owners.setdefault(piece.tensor, piece.owners)
    return tuple(sorted(held, key=lambda h: (not h.spec.split, owners[h.spec.name])))
