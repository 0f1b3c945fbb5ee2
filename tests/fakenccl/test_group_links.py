"""Links over process groups keep what links over sockets promise, on gloo and with NCCL's manners."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from tests.fakenccl.backend import fake_backend
from tests.fakenccl.processes import on_ranks
from torch.distributed import PrefixStore, Store

from lurcher.errors import LurcherError
from lurcher.runtime.backend import Interrupted, Patience
from lurcher.runtime.backends import GroupBackend, MakeGloo
from lurcher.runtime.links import HOP, MEETING

pytestmark = [pytest.mark.timeout(90), pytest.mark.dist]
RANKS = (5, 2, 9)
"""Three ranks of a stage, in its order, which is not theirs."""
TIMEOUT_S = 30.0
LARGE = 300_000
"""Elements: more bytes than a socket's buffers hold."""


def part_of(rank: int, num_elements: int = LARGE) -> torch.Tensor:
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(rank))


def exchanges(index: int, store: Store, kind: str):
    """What one rank finds; the same processes do all of it."""
    rank, flag = RANKS[index], threading.Event()
    peers = set(RANKS) - {rank}
    backend = GroupBackend(MakeGloo()) if kind == "gloo" else fake_backend()
    links = backend.links(rank, peers, RANKS, PrefixStore("links", store), Patience(TIMEOUT_S, TIMEOUT_S, flag.is_set))
    found: dict[str, object] = {}

    # All send more than a socket holds before anybody receives, and the numbers are asked for in another order.
    for peer in sorted(peers):
        for seq in (7, 3, 5):
            links.send(peer, HOP, seq, part_of(100 * rank + 10 * peer + seq))
        links.send(peer, MEETING, 3, torch.arange(6, dtype=torch.float64).view(2, 3))
    found["numbers"] = all(
        torch.equal(links.receive(peer, HOP, seq, torch.empty(LARGE)), part_of(100 * peer + 10 * rank + seq)) for peer in peers for seq in (3, 5, 7)
    )
    shaped = [links.receive(peer, MEETING, 3, torch.empty(2, 3, dtype=torch.float64)) for peer in peers]
    found["shape and type"] = all(torch.equal(each, torch.arange(6, dtype=torch.float64).view(2, 3)) for each in shaped)

    tensor = part_of(rank)
    links.sum_in_place(RANKS, tensor)
    found["sum in the stage's order"] = torch.equal(tensor, part_of(RANKS[0]) + part_of(RANKS[1]) + part_of(RANKS[2]))
    found["gather"] = [part.item() for part in links.gather(RANKS, torch.full((1,), float(rank)))]
    reused = torch.ones(4)
    links.send(RANKS[index - 1], HOP, 11, reused)
    reused.zero_()
    after = RANKS[(index + 1) % 3]
    found["sent as it was"] = links.receive(after, HOP, 11, reused).tolist()
    links.complete()

    with pytest.raises(LurcherError, match="gathers with ranks"):
        links.gather(RANKS[:2], torch.ones(1))
    threading.Timer(0.2, flag.set).start()
    begin_s = time.monotonic()
    with pytest.raises((Interrupted, RuntimeError)) as ended:
        links.receive(after, HOP, 12, reused)  # which nobody sends
    links.close()
    found["ended and closed at once"] = time.monotonic() - begin_s < 5.0
    found["interrupted"] = ended.type is Interrupted
    with pytest.raises(LurcherError, match="closed with their generation"):
        links.send(after, HOP, 0, reused)
    return found


@pytest.mark.parametrize("kind", ["gloo", "fakenccl"])
def test_links_over_groups(kind):
    answers = on_ranks(len(RANKS), exchanges, kind)
    interrupted = [answer.value.pop("interrupted") for answer in answers]
    assert all(interrupted) if kind == "fakenccl" else any(interrupted)  # gloo also tells when a peer has closed
    for answer in answers:
        gathered, sent = answer.value.pop("gather"), answer.value.pop("sent as it was")
        assert gathered == [5.0, 2.0, 9.0] and sent == [1.0] * 4
        assert all(answer.value.values()), answer.value
