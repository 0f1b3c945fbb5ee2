"""The best tensor group out of some ranks, for thousands of nodes: which ranks go on, with how many of a layer's whole atoms."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from lurcher.model.rates import Rates


class Choice(NamedTuple):
    """The first `len(atoms)` of the speeds, with their atoms, and the seconds of a layer there and back."""

    atoms: tuple[int, ...]
    layer_s: float


def best_group(speeds: Sequence[float], rates: Rates, num_atoms: int, most_ranks: int) -> Choice:
    """The members that make a layer fastest, exactly. `speeds` (1 / slowdown, all above 0) stand fastest first.

    Of k members the k fastest are best, and their atoms are an exact min-max split of atoms / speed. Ties go to more ranks.
    """
    together = list(accumulate(speeds))
    best_s, best_k = float("inf"), 1
    for k in range(min(len(speeds), num_atoms, most_ranks), 0, -1):
        if _seconds(rates, k, 1.0 / together[k - 1]) >= best_s:  # not even if atoms could be cut
            continue
        layer_s = _seconds(rates, k, _least_end(speeds[:k], together[k - 1], num_atoms) / num_atoms)
        if layer_s < best_s * (1 - 1e-12):
            best_s, best_k = layer_s, k
    return Choice(_atoms(speeds[:best_k], together[best_k - 1], num_atoms), best_s)


def _seconds(rates: Rates, num_ranks: int, part: float) -> float:
    """Seconds of a layer there and back, when each of the ranks is busy for `part` of what it takes a healthy device alone; healthy links."""
    together_s = 4 * rates.tp_bytes * (num_ranks - 1) / num_ranks / rates.node_bytes_per_s if rates.tp_bytes and rates.node_bytes_per_s else 0.0
    return (rates.forward_s + rates.backward_s + rates.weight_s) * part / rates.efficiency(num_ranks) + together_s


def _least_end(speeds: Sequence[float], together: float, num_atoms: int) -> float:
    """The least max_i(atoms_i / speed_i): the num_atoms-th smallest of all j / speed_i. `together` is the speeds' sum.

    All that end before the fractional optimum are handed out at once; the few that are left one by one.
    """
    before = num_atoms / together * (1 - 1e-12)
    taken = [int(before * speed) for speed in speeds]
    ends = [((n + 1) / speed, i) for i, (n, speed) in enumerate(zip(taken, speeds, strict=True))]
    heapq.heapify(ends)
    end_s, i = ends[0]
    for _ in range(num_atoms - sum(taken)):
        end_s, i = ends[0]
        taken[i] += 1
        heapq.heapreplace(ends, ((taken[i] + 1) / speeds[i], i))
    return end_s


def _atoms(speeds: Sequence[float], together: float, num_atoms: int) -> tuple[int, ...]:
    """The atoms of each; a fastest rank that could take one more than is left gives it up first."""
    end = _least_end(speeds, together, num_atoms)
    atoms = [int(end * speed * (1 + 1e-12)) for speed in speeds]
    while sum(atoms) > num_atoms:
        ends = [n / speed if n > 1 else 0.0 for n, speed in zip(atoms, speeds, strict=True)]
        atoms[ends.index(max(ends))] -= 1
    return tuple(atoms)
