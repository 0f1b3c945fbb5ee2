"""Owner sets: which ranks hold which slice of the model, and so who sums whose gradients. Torch-free and pure.

Replicas may cut a tensor differently, and a tied embedding lives on two stages. So every tensor is cut at the union of all
its holders' cuts; a slice then has one tuple of owners, whose gradients are summed and whose bits must stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from lurcher.config import ModelSection
from lurcher.layout import Layout
from lurcher.runtime.shapes import TensorSpec, atom_range, holds, tensor_specs


class Slice(msgspec.Struct, frozen=True):
    """Atoms `first` .. `end - 1` of a tensor and the sorted ranks that hold them."""

    tensor: str
    first: int
    end: int
    owners: tuple[int, ...]

    @property
    def name(self) -> str:
        """The slice's name, the same on all its owners."""
        return f"{self.tensor}[{self.first}:{self.end}]"

    @property
    def primary(self) -> int:
        """The owner that counts these atoms in the gradient norm."""
        return self.owners[0]


def cut_slices(model: ModelSection, layout: Layout) -> tuple[Slice, ...]:
    """Every slice of the model, in canonical order: tensors as in `tensor_specs`, then by atom."""
    return tuple(piece for spec in tensor_specs(model) for piece in _cut(spec, layout))


def owner_sets(slices: Iterable[Slice]) -> dict[tuple[int, ...], tuple[Slice, ...]]:
    """Slices by their owners, sorted by owners: one all-reduce each, for sets of two ranks and more."""
    sets: dict[tuple[int, ...], list[Slice]] = {}
    for piece in slices:
        sets.setdefault(piece.owners, []).append(piece)
    return {owners: tuple(sets[owners]) for owners in sorted(sets)}


def slices_of(slices: Iterable[Slice], rank: int) -> tuple[Slice, ...]:
    """The slices that `rank` owns, in canonical order."""
    return tuple(piece for piece in slices if rank in piece.owners)


def _cut(spec: TensorSpec, layout: Layout) -> list[Slice]:
    held: list[tuple[int, int, int]] = []
    for d, s, stage in layout.stages():
        if holds(spec, layout, d, s):
            held += [(rank, *atom_range(spec, stage, t)) for t, rank in enumerate(stage.ranks)]
    cuts = sorted({cut for _, first, end in held for cut in (first, end)})
    pieces = []
    for first, end in pairwise(cuts):
        owners = tuple(sorted({rank for rank, low, high in held if low <= first and end <= high}))
        if owners:
            pieces.append(Slice(spec.name, first, end, owners))
    return pieces
