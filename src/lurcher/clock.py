"""Time as a value that can be handed in, so that tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in nanoseconds that can also wait."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Wait for `duration_s` seconds."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_s(self, duration_s: float) -> None:
        """Wait for `duration_s` seconds."""
        time.sleep(duration_s)


class FakeClock:
    """A clock that moves only when told to, or when somebody sleeps on it."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The time this clock was moved to, in nanoseconds."""
        return self._now_ns

    def sleep_s(self, duration_s: float) -> None:
        """Move the clock on by `duration_s` seconds, at once."""
        self._now_ns += round(duration_s * 1e9)
