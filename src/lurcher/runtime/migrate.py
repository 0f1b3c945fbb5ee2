"""Carry a rank's state from one layout to the next: what it keeps is copied, what it lacks comes from others, into staging."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from lurcher.runtime.links import HOP, Links
from lurcher.runtime.owners import Slice
from lurcher.runtime.storage import Storage
from lurcher.runtime.transfer import STATES, Move


def partners_of(moves: Sequence[Move], rank: int) -> tuple[int, ...]:
    """The ranks that `rank` sends to or receives from, sorted."""
    return tuple(sorted({m.source for m in moves if m.target == rank} | {m.target for m in moves if m.source == rank}))


def keep(old: Storage, new: Storage, before: Sequence[Slice]) -> None:
    """Copy what both storages hold of the slices `before`, which are the old one's."""
    new_held = {h.spec.name: h for h in new.held}
    for piece in before:
        held = new_held.get(piece.tensor)
        if held is None or max(piece.first, held.first) >= min(piece.end, held.end):
            continue
        part = msgspec.structs.replace(piece, first=max(piece.first, held.first), end=min(piece.end, held.end))
        old_span, new_span = slice(*old.span(part)), slice(*new.span(part))
        for name in STATES:
            getattr(new, name)[new_span] = getattr(old, name)[old_span]


def exchange(old: Storage, new: Storage, moves: Sequence[Move], rank: int, links: Links) -> int:
    """Send what others lack and receive what this rank does, one message a pair of ranks and kind of state. Returns the bytes received."""
    for target in sorted({m.target for m in moves if m.source == rank}):
        pieces = [m.piece for m in moves if (m.source, m.target) == (rank, target)]
        for number, name in enumerate(STATES):
            flat = getattr(old, name)
            links.send(target, HOP, number, torch.cat([flat[slice(*old.span(piece))] for piece in pieces]))
    num_bytes = 0
    for source in sorted({m.source for m in moves if m.target == rank}):
        spans = [slice(*new.span(m.piece)) for m in moves if (m.source, m.target) == (source, rank)]
        sizes = [span.stop - span.start for span in spans]
        for number, name in enumerate(STATES):
            flat = getattr(new, name)
            received = links.receive(source, HOP, number, flat.new_empty(sum(sizes)))
            num_bytes += received.numel() * received.element_size()
            for span, part in zip(spans, received.split(sizes), strict=True):
                flat[span] = part
    return num_bytes
