"""One rank's part of the link benchmark: connections for it alone, of the kind that the engine uses, and its pairs, round by round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from lurcher.errors import DeadlineExpired
from lurcher.records import BenchResult
from lurcher.runtime.backend import Link
from lurcher.runtime.links import HOP
from lurcher.runtime.wires import Wires
from lurcher.validate.bench_link import answer_pair, begin_pair
from lurcher.validate.rounds import Pair, Round

NO_ANSWER = (ConnectionError, RuntimeError, DeadlineExpired)
"""What a wait for the other rank of a pair may end with; then nothing is known of the link."""


class _Channel:
    """One pair's messages over a link, in order, each as long under way as an emulated link would have it."""

    def __init__(self, link: Link, rank: int, peer: int, wires: Wires, iteration: int) -> None:
        self._link, self._rank, self._peer, self._wires, self._iteration = link, rank, peer, wires, iteration
        self._num_sent = self._num_received = 0

    def send(self, tensor: torch.Tensor) -> None:
        """The next message to the other one."""
        self._link.send(self._peer, HOP, self._num_sent, tensor)
        self._num_sent += 1

    def receive(self, like: torch.Tensor) -> torch.Tensor:
        """Its next message."""
        came = self._link.receive(self._peer, HOP, self._num_received, like)
        self._num_received += 1
        self._wires.hop(self._peer, self._rank, came.numel() * came.element_size(), self._iteration)
        return came


def bench_links(
    rank: int, rounds: Sequence[Round], connect: Callable[[Collection[int]], Link], wires: Wires, iteration: int
) -> tuple[BenchResult, ...]:
    """Results of the pairs that this rank begins. Where another rank does not answer, those up to then: it must not hold the training."""
    mine: list[Pair] = [pair for one in rounds for pair in one if rank in pair]
    found: list[BenchResult] = []
    try:
        link = connect({other for pair in mine for other in pair} - {rank})
    except NO_ANSWER:
        return ()
    try:
        for pair in mine:
            peer = pair[1] if pair[0] == rank else pair[0]
            channel = _Channel(link, rank, peer, wires, iteration)
            if pair[0] == rank:
                found.append(begin_pair(pair, channel))
            else:
                answer_pair(channel)
        link.complete()
    except NO_ANSWER:
        pass
    finally:
        link.close()
    return tuple(found)
