"""Ranks proven slow, as their own busy time shows them now: how slow, whether worse, whether healed.

Recovery is read here and not from the iteration time: after a split a healthy replica may set the pace, and then the
iteration time does not change when the slow rank heals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from statistics import median

WINDOW = 6
"""Iterations in the running estimate of a slow rank's factor."""
RECOVERY_WINDOW = 4
"""Iterations in a row that must look healthy before a rank is validated for recovery."""
RETRY_ITERATIONS = 8
"""Iterations between two recovery benchmarks of a rank that turned out to be slow still."""
IDLE_ITERATIONS = 20
"""The same for a rank on standby, which does no work that could show it."""
ESCALATION = 1.15
"""A factor this much above (or below) the one a plan was made for asks for a new plan."""


class WatchedRank:
    """One rank proven slow. `slowdown` follows its busy time; `answered` is the factor that the last plan was made for."""

    def __init__(self, rank: int, slowdown: float) -> None:
        self.rank = rank
        self.slowdown = slowdown
        self.proven_slowdown = slowdown
        self.answered = slowdown
        self.retry_after = -1
        self.tested_slow = -1  # the last iteration after which a benchmark still found it slow
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def observe(self, ratio: float) -> None:
        """One iteration's busy time over the expected one."""
        self._recent.append(ratio)
        if len(self._recent) >= 3:
            self.slowdown = max(1.0, median(self._recent))

    def looks_healed(self, iteration: int) -> bool:
        """The last few iterations lie near the healthy level, against the size of the fault."""
        limit = 1.0 + max(0.06, 0.3 * (self.proven_slowdown - 1.0))
        last = list(self._recent)[-RECOVERY_WINDOW:]
        return len(last) == RECOVERY_WINDOW and max(last) < limit and iteration > self.retry_after

    def has_moved(self) -> bool:
        """Much slower or faster than what was last answered, and settled there."""
        settled = len(self._recent) >= RECOVERY_WINDOW and max(self._recent) < ESCALATION * min(self._recent)
        return settled and not 1.0 / ESCALATION < self.slowdown / self.answered < ESCALATION


class Watchlist:
    """All ranks proven slow."""

    def __init__(self) -> None:
        self._ranks: dict[int, WatchedRank] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._ranks

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __iter__(self) -> Iterator[WatchedRank]:
        return iter(self._ranks.values())

    @property
    def slowdown(self) -> dict[int, float]:
        """Rank -> present factor."""
        return {r: w.slowdown for r, w in self._ranks.items()}

    def add(self, rank: int, slowdown: float) -> None:
        """A rank was proven slow."""
        self._ranks[rank] = WatchedRank(rank, slowdown)

    def remove(self, rank: int) -> None:
        """A rank was proven healthy again."""
        del self._ranks[rank]

    def observe(self, ratios: Mapping[int, float]) -> None:
        """One iteration's busy ratios of all ranks."""
        for rank, watched in self._ranks.items():
            if rank in ratios:
                watched.observe(ratios[rank])

    def healed(self, iteration: int) -> tuple[int, ...]:
        """Ranks whose own busy time says that they recovered."""
        return tuple(r for r, w in self._ranks.items() if w.looks_healed(iteration))

    def idle(self, iteration: int, working: Collection[int]) -> tuple[int, ...]:
        """Ranks that were given no work, so that only a benchmark can tell whether they have recovered, and that are due for one."""
        return tuple(r for r, w in self._ranks.items() if r not in working and iteration >= w.retry_after + IDLE_ITERATIONS - RETRY_ITERATIONS)

    def still_slow(self, rank: int, iteration: int) -> None:
        """A benchmark after this iteration says so."""
        self._ranks[rank].tested_slow = iteration

    def last_test(self, rank: int) -> int:
        """The last iteration after which a benchmark still found the rank slow; -1 if none did since it was proven."""
        return self._ranks[rank].tested_slow

    def postpone(self, rank: int, iteration: int) -> None:
        """The benchmark said: still slow. Ask again later."""
        self._ranks[rank].retry_after = iteration + RETRY_ITERATIONS

    @property
    def epoch(self) -> str:
        """Names the present set of faults and factors, "" for none; another name asks for another answer."""
        return ", ".join(f"rank {r} x{w.answered:.2f}" for r, w in sorted(self._ranks.items()))

    def settle(self) -> None:
        """Take factors that have moved far as new faults to answer."""
        for watched in self._ranks.values():
            if watched.has_moved():
                watched.answered = watched.slowdown
