"""When a lost rank's process is started again. Pure: what happened and the time in, ranks and reasons out.

Whoever dies once may have been unlucky; whoever dies again soon after coming back is ill. So the wait doubles with each loss of a rank that
follows the one before it closely, and after a few starts it stays out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

COOL_DOWN_S = 10.0
"""From the first loss of a rank to its start."""
WINDOW_S = 600.0
"""Losses of one rank that follow each other within this time double the wait."""
MOST_STARTS = 3
"""Times that a rank is started again in one job."""


class Return(NamedTuple):
    """When a rank is started again (None: never), and why then."""

    at_s: float | None
    reason: str


class Answer(NamedTuple):
    """Ranks to start now, and what is new to say about the absent ones."""

    ranks: tuple[int, ...]
    reasons: tuple[str, ...]


def when_back(rank: int, lost_at_s: Sequence[float], num_starts: int) -> Return:
    """What follows from the times at which a rank was lost, in order and at least one, and how often it was started again."""
    if num_starts >= MOST_STARTS:
        return Return(None, f"rank {rank} was started again {num_starts} times and is lost again: it stays out")
    close = 1
    for before, after in zip(reversed(lost_at_s[:-1]), reversed(lost_at_s[1:]), strict=True):
        if after - before > WINDOW_S:
            break
        close += 1
    wait_s = COOL_DOWN_S * 2.0 ** (close - 1)
    often = f"; it was lost {close} times, each within {WINDOW_S:g} s of the one before" if close > 1 else ""
    return Return(lost_at_s[-1] + wait_s, f"rank {rank} will be started again, as a standby, {wait_s:g} s after it was missed{often}")


class Respawner:
    """Remembers the losses and starts of each rank. A start that comes to nothing is a loss."""

    def __init__(self) -> None:
        self._lost_at_s: dict[int, list[float]] = {}
        self._num_starts: dict[int, int] = {}
        self._away: dict[int, Return] = {}

    def step(self, now_s: float, absent: Collection[int]) -> Answer:
        """`absent` ranks are not there, and not about to come."""
        reasons = []
        for rank in sorted(set(absent) - self._away.keys()):
            self._lost_at_s.setdefault(rank, []).append(now_s)
            self._away[rank] = when_back(rank, self._lost_at_s[rank], self._num_starts.get(rank, 0))
            reasons.append(self._away[rank].reason)
        due = tuple(rank for rank, back in sorted(self._away.items()) if back.at_s is not None and back.at_s <= now_s)
        for rank in due:
            del self._away[rank]
            self._num_starts[rank] = self._num_starts.get(rank, 0) + 1
        return Answer(due, tuple(reasons))
