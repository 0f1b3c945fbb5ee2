"""What passes between ranks takes the time that an emulated link would take for it; without emulation, the time it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lurcher.clock import Clock
from lurcher.model.link_pace import LinkPace


class Wires(Protocol):
    """Called when a transfer's bytes are there: each returns, with the nanoseconds waited, once a link would have brought them."""

    def hop(self, source: int, target: int, num_bytes: int, iteration: int) -> int:
        """One message of a rank to another."""
        ...

    def ring(self, ranks: Sequence[int], num_bytes: int, iteration: int) -> int:
        """A sum over ranks, round a ring in this order."""
        ...


class NoWires:
    """Bytes are there when they are there."""

    def hop(self, source: int, target: int, num_bytes: int, iteration: int) -> int:
        """Nothing to wait for."""
        return 0

    def ring(self, ranks: Sequence[int], num_bytes: int, iteration: int) -> int:
        """Nothing to wait for."""
        return 0


class EmulatedWires:
    """Waits as long as `pace` says. A link goes on while a process is stopped, so one sleep does."""

    def __init__(self, pace: LinkPace, clock: Clock) -> None:
        self._pace, self._clock = pace, clock
        self._origin_ns = clock.now_ns()

    def hop(self, source: int, target: int, num_bytes: int, iteration: int) -> int:
        """Wait for one message."""
        return self._wait(self._pace.hop_s(source, target, num_bytes, iteration, self._elapsed_s()))

    def ring(self, ranks: Sequence[int], num_bytes: int, iteration: int) -> int:
        """Wait for a sum."""
        return self._wait(self._pace.ring_s(ranks, num_bytes, iteration, self._elapsed_s()))

    def _elapsed_s(self) -> float:
        return (self._clock.now_ns() - self._origin_ns) * 1e-9

    def _wait(self, duration_s: float) -> int:
        if duration_s <= 0:
            return 0
        begin_ns = self._clock.now_ns()
        self._clock.sleep_s(duration_s)
        return self._clock.now_ns() - begin_ns
