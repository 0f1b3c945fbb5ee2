"""Which links are tested side by side: rounds of pairs of which no two share a rank (GREYHOUND: passes, their number independent of the group's size)."""

from __future__ import annotations

from collections.abc import Iterable

Pair = tuple[int, int]
"""Two ranks, the lower one first: it begins, and takes the time."""
Round = tuple[Pair, ...]


def rounds_of(pairs: Iterable[Pair]) -> tuple[Round, ...]:
    """Every pair once, each in the first round that has neither of its ranks: fewer than twice as many rounds as a rank has pairs. A ring of even length takes two."""
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in _along(sorted(set(pairs))):
        turn = next((turn for turn, ranks in enumerate(busy) if ranks.isdisjoint(pair)), len(busy))
        if turn == len(busy):
            found.append([])
            busy.append(set())
        found[turn].append(pair)
        busy[turn].update(pair)
    return tuple(tuple(sorted(one)) for one in found)


def _along(pairs: list[Pair]) -> list[Pair]:
    """Each pair next to one that shares a rank with it, as far as there is one: so that rings alternate."""
    left, found, at = list(pairs), list[Pair](), -1
    while left:
        pair = next((one for one in left if at in one), left[0])
        left.remove(pair)
        at = pair[1] if pair[0] == at else pair[0] if pair[1] == at else pair[1]
        found.append(pair)
    return found
