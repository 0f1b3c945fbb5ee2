"""The link benchmark: messages between two ranks at an iteration border, one pass of pairs after the other (GREYHOUND section on validation)."""

from __future__ import annotations

import time
from statistics import median
from typing import Protocol

import torch

from lurcher.records import BenchResult, Component

NUM_REPEATS = 4
MESSAGE_BYTES = 1 << 17
"""GREYHOUND sends 16 to 64 MB; here links are as slow as the devices are, and this takes as long."""
MOST_S = 0.3
"""A pair that has taken so long sends no more: a slow link must not make the pause long."""


class Channel(Protocol):
    """What one rank of a pair sends to the other and gets from it, in turn; waits end with a deadline."""

    def send(self, tensor: torch.Tensor) -> None:
        """The next message to the other one."""
        ...

    def receive(self, like: torch.Tensor) -> torch.Tensor:
        """Its next message."""
        ...


def begin_pair(pair: tuple[int, int], channel: Channel) -> BenchResult:
    """The lower rank's part: median seconds of a message there and a word back. Lower is better.

    A first word and its answer are not timed: the other one may be busy with another pair. The message's first byte says whether it is the last.
    """
    message, word = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    channel.send(word)
    channel.receive(word)
    times_s: list[float] = []
    is_last = False
    while not is_last:
        is_last = len(times_s) == NUM_REPEATS - 1 or sum(times_s) > MOST_S
        message[0] = is_last
        begin_ns = time.monotonic_ns()
        channel.send(message)
        channel.receive(word)
        times_s.append((time.monotonic_ns() - begin_ns) * 1e-9)
    return BenchResult(Component("link", f"{pair[0]}-{pair[1]}", pair), "link", median(times_s), len(times_s))


def answer_pair(channel: Channel) -> None:
    """The other rank's part."""
    message, word = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    channel.receive(word)
    channel.send(word)
    is_last = False
    while not is_last:
        is_last = bool(channel.receive(message)[0])
        channel.send(word)
