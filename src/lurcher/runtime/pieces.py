"""State passes between ranks in pieces, and in turns, so that no more than a piece or two waits to be taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch

from lurcher.runtime.backend import Link
from lurcher.runtime.links import HOP

PIECE_BYTES = 1 << 17
"""Longest message: what a socket takes at once, so that nothing is put aside in between. Whole tensors took 1.6 times the CPU (36 MB, 2 ranks)."""

Piece = list[torch.Tensor]
"""Flat tensors that are one message."""


def pieces_of(parts: Sequence[torch.Tensor]) -> list[Piece]:
    """Flat tensors of one type, cut and put together to pieces. Both ends do so alike, for their parts have the same lengths in the same order."""
    found: list[Piece] = []
    room = 0
    for part in parts:
        begin = 0
        while begin < len(part):
            if room == 0:
                found.append([])
                room = PIECE_BYTES // part.element_size()
            taken = part[begin : begin + room]
            found[-1].append(taken)
            begin, room = begin + len(taken), room - len(taken)
    return found


def pass_pieces(links: Link, outgoing: Mapping[int, Sequence[Piece]], incoming: Mapping[int, Sequence[Piece]]) -> int:
    """Send every rank its pieces, and receive into those of `incoming`, which has the ranks that they come from. Returns the bytes received."""
    num_bytes = 0
    for number, (sent, awaited) in enumerate(zip_longest(_turns(outgoing), _turns(incoming), fillvalue=())):
        for rank, piece in sent:
            links.send(rank, HOP, number, piece[0] if len(piece) == 1 else torch.cat(piece))
        for rank, piece in awaited:
            sizes = [len(part) for part in piece]
            received = links.receive(rank, HOP, number, piece[0].new_empty(sum(sizes)))
            num_bytes += received.nbytes
            for part, values in zip(piece, received.split(sizes), strict=True):
                part.copy_(values)
    return num_bytes


def _turns(pieces: Mapping[int, Sequence[Piece]]) -> list[list[tuple[int, Piece]]]:
    """The first piece of every rank, then the second of every rank that has one, and so on."""
    ranks = sorted(pieces)
    turns = zip_longest(*(pieces[rank] for rank in ranks))
    return [[(rank, piece) for rank, piece in zip(ranks, turn, strict=True) if piece is not None] for turn in turns]
