"""The best tensor group out of some ranks, for thousands of nodes: which ranks go on, with how many of a layer's whole atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.model.rates import Rates

Floats = NDArray[np.float64]


class Choice(NamedTuple):
    """The first `len(atoms)` of the speeds, with their atoms, and the seconds of a layer there and back."""

    atoms: tuple[int, ...]
    layer_s: float


def best_group(speeds: Sequence[float], rates: Rates, num_atoms: int, most_ranks: int) -> Choice:
    """The members that make a layer fastest, exactly. `speeds` (1 / slowdown, all above 0) stand fastest first.

    Of k members the k fastest are best, and their atoms are an exact min-max split of atoms / speed. Ties go to more ranks.
    """
    own = np.array(speeds)
    together = np.cumsum(own)
    best_s, best_k = float("inf"), 1
    for k in range(min(len(own), num_atoms, most_ranks), 0, -1):
        if _seconds(rates, k, 1.0 / float(together[k - 1])) >= best_s:  # not even if atoms could be cut
            continue
        layer_s = _seconds(rates, k, _least_end(own[:k], num_atoms) / num_atoms)
        if layer_s < best_s * (1 - 1e-12):
            best_s, best_k = layer_s, k
    return Choice(_atoms(own[:best_k], num_atoms), best_s)


def _seconds(rates: Rates, num_ranks: int, part: float) -> float:
    """Seconds of a layer there and back, when each of the ranks is busy for `part` of what it takes a healthy device alone; healthy links."""
    together_s = 4 * rates.tp_bytes * (num_ranks - 1) / num_ranks / rates.node_bytes_per_s if rates.tp_bytes and rates.node_bytes_per_s else 0.0
    return (rates.forward_s + rates.backward_s + rates.weight_s) * part / rates.efficiency(num_ranks) + together_s


def _least_end(speeds: Floats, num_atoms: int) -> float:
    """The least max_i(atoms_i / speed_i): the num_atoms-th smallest of all j / speed_i."""
    return float(np.partition((np.arange(1, num_atoms + 1)[:, None] / speeds).ravel(), num_atoms - 1)[num_atoms - 1])


def _atoms(speeds: Floats, num_atoms: int) -> tuple[int, ...]:
    """The atoms of each; a fastest rank that could take one more than is left gives it up first."""
    atoms = np.floor(_least_end(speeds, num_atoms) * speeds * (1 + 1e-12)).astype(int)
    while atoms.sum() > num_atoms:
        atoms[int(np.argmax(np.where(atoms > 1, atoms / speeds, 0.0)))] -= 1
    return tuple(int(n) for n in atoms)
