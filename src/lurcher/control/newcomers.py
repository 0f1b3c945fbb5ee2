"""Ranks without work that could have some: who came to a running job stands by until a benchmark says that it is fit, and is then offered work."""

from __future__ import annotations

from collections.abc import Collection

from lurcher.control.watchlist import IDLE_ITERATIONS


class Newcomers:
    """Those who wait for their benchmark, and those who have passed it."""

    def __init__(self) -> None:
        self._not_before: dict[int, int] = {}
        self._fit: set[int] = set()

    def __contains__(self, rank: int) -> bool:
        return rank in self._not_before

    @property
    def untested(self) -> tuple[int, ...]:
        """Ranks that nothing is known of."""
        return tuple(sorted(self._not_before))

    def come(self, ranks: Collection[int], iteration: int) -> None:
        """Ranks that stand by since this iteration."""
        self._not_before.update(dict.fromkeys(ranks, iteration))

    def due(self, iteration: int, standby: Collection[int]) -> tuple[int, ...]:
        """Ranks to test now. One that found no answer is tested again after a while."""
        due = tuple(rank for rank in self.untested if rank in standby and iteration >= self._not_before[rank])
        self._not_before.update(dict.fromkeys(due, iteration + IDLE_ITERATIONS))
        return due

    def passed(self, rank: int) -> None:
        """It is as fast as it was."""
        del self._not_before[rank]
        self._fit.add(rank)

    def recovered(self, rank: int) -> None:
        """It was slow while the job found a healthy layout without it, and is not any more."""
        self._fit.add(rank)

    def gone(self, ranks: Collection[int]) -> None:
        """They have left the job again."""
        for rank in ranks:
            self._not_before.pop(rank, None)
            self._fit.discard(rank)

    def fit(self, standby: Collection[int]) -> tuple[int, ...]:
        """Ranks to be offered work."""
        return tuple(sorted(self._fit.intersection(standby)))

    def offered(self) -> None:
        """What they could do was looked at."""
        self._fit.clear()
