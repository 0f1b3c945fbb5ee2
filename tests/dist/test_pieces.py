"""State in pieces: both ends cut alike, whatever the lengths, and what arrives is what was sent. Ranks are threads here."""

from __future__ import annotations

import random
import socket
import struct

import pytest
import torch
from test_links import on_all

from lurcher.runtime.links import HOP, Links
from lurcher.runtime.pieces import PIECE_BYTES, pass_pieces, pieces_of

ROOM = PIECE_BYTES // 8


@pytest.mark.parametrize("lengths", [(), (0,), (1,), (ROOM,), (ROOM + 1,), (3, ROOM - 3, 5), (5, 0, 2 * ROOM, 7), (ROOM // 2,) * 5])
def test_pieces_are_full_and_in_order(lengths):
    parts = [torch.arange(length, dtype=torch.float64) + 1e6 * i for i, length in enumerate(lengths)]
    pieces = pieces_of(parts)
    joined = [part for piece in pieces for part in piece]
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.float64), *joined]), torch.cat([torch.empty(0, dtype=torch.float64), *parts]))
    sizes = [sum(map(len, piece)) for piece in pieces]
    assert all(size == ROOM for size in sizes[:-1]) and all(0 < size <= ROOM for size in sizes)
    assert all(part.data_ptr() in range(parts[i].data_ptr(), parts[i].data_ptr() + 8 * lengths[i]) for part in joined for i in [int(part[0] // 1e6)])


@pytest.mark.parametrize("seed", range(4))
def test_what_arrives_is_what_was_sent(seed):
    """Random lengths between each two of three ranks, nothing at all between some."""
    rng = random.Random(seed)
    ranks = (0, 1, 2)
    parts = {
        (a, b): [torch.rand(rng.choice((1, 7, ROOM, 3 * ROOM + 5)), dtype=torch.float64) for _ in range(rng.choice((0, 1, 3)))]
        for a in ranks
        for b in ranks
        if a != b
    }

    def work(links: Links, rank: int) -> tuple[dict[int, list[torch.Tensor]], int]:
        places = {a: [torch.zeros_like(part) for part in sent] for (a, b), sent in parts.items() if b == rank}
        outgoing = {b: pieces_of(sent) for (a, b), sent in parts.items() if a == rank}
        return places, pass_pieces(links, outgoing, {a: pieces_of(mine) for a, mine in places.items()})

    for rank, (places, num_bytes) in enumerate(on_all(ranks, work)):
        assert num_bytes == sum(8 * len(part) for mine in places.values() for part in mine)
        for sender, mine in places.items():
            assert all(torch.equal(*both) for both in zip(mine, parts[sender, rank], strict=True))


def test_messages_may_arrive_in_any_cuts():
    """Bytes written to the socket as they please: a header cut in two, several messages at once, the rest of a long one with the next one's beginning."""
    messages = [torch.rand(length, dtype=torch.float64) for length in (1, 30_000, 0, 2, 9_000, 3)]
    stream = b"".join(struct.pack("<BQQ", HOP, seq, 8 * len(message)) + message.numpy().tobytes() for seq, message in enumerate(messages))

    def work(links: Links, rank: int) -> list[torch.Tensor] | None:
        if rank == 0:
            raw: socket.socket = links._peers[1].socket
            raw.setblocking(True)
            rng, at = random.Random(1), 0
            while at < len(stream):
                size = rng.choice((1, 5, 16, 17, 18, 100, 70_000))
                raw.sendall(stream[at : at + size])
                at += size
            return None
        order = (3, 0, 1, 5, 4)
        return [links.receive(0, HOP, seq, messages[seq]) for seq in order]

    _, got = on_all((0, 1), work)
    assert all(torch.equal(one, messages[seq]) for one, seq in zip(got, (3, 0, 1, 5, 4), strict=True))
