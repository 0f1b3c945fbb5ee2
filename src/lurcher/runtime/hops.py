"""Who sends what to whom where a micro-batch goes from one stage to another, of this replica or of another one.

Between stages of a and b ranks, a != b, every byte crosses once: the tensor is cut into N = max(a, b) parts, of which part k
goes from rank k * a // N to rank k * b // N, and the receivers exchange what they got among themselves (ResiHP, Executor).
Stages of equal size pass a whole copy from rank to rank, which needs no second exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lurcher.layout import Layout
from lurcher.model.program import borders


class Part(NamedTuple):
    """Elements `start` .. `end - 1` of the flattened tensor, which `source` sends to `target`."""

    source: int
    target: int
    start: int
    end: int


def parts(senders: Sequence[int], receivers: Sequence[int], num_elements: int) -> tuple[Part, ...]:
    """What passes from stage to stage, in order of elements. Any two ranks exchange one part at the most."""
    a, b = len(senders), len(receivers)
    if a == b:
        return tuple(Part(source, target, 0, num_elements) for source, target in zip(senders, receivers, strict=True))
    num = max(a, b)
    cuts = [num_elements * k // num for k in range(num + 1)]
    return tuple(Part(senders[k * a // num], receivers[k * b // num], cuts[k], cuts[k + 1]) for k in range(num))


def held_apart(arriving: Sequence[Part], senders: Sequence[int], receivers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Which elements (start, end) each receiver has got that the others of its stage lack; nothing where every one has the whole."""
    held: dict[int, tuple[int, int]] = {}
    if len(receivers) not in (1, len(senders)):
        for part in arriving:
            start, _ = held.get(part.target, (part.start, part.end))
            held[part.target] = (start, part.end)
    return held


def partners(layout: Layout, rank: int) -> tuple[int, ...]:
    """Those that `rank` exchanges with directly; nobody for a standby."""
    return all_partners(layout).get(rank, ())


def all_partners(layout: Layout) -> dict[int, tuple[int, ...]]:
    """For each working rank those it exchanges with directly, sorted: the mates of its stage and the other ends of its hops."""
    found = {rank: set(stage.ranks) for _, _, stage in layout.stages() for rank in stage.ranks}
    for border in borders(layout):
        a, b = (layout.replicas[d].stages[s].ranks for d, s in border)
        for part in parts(a, b, max(len(a), len(b))):  # those of the way back run between the same ranks
            found[part.source].add(part.target)
            found[part.target].add(part.source)
    return {rank: tuple(sorted(found[rank] - {rank})) for rank in sorted(found)}
