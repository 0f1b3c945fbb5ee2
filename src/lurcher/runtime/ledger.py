"""One sealed decision per (generation, iteration): COMMIT or ABORT, written once.

The absence of a record is no decision: a recovery first seals ABORT, or obeys the COMMIT that won the race.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Decision = Literal["COMMIT", "ABORT"]


class Ledger:
    """Write-once decisions and the acknowledgements that lead to them. Pure memory: no clock, no sockets."""

    def __init__(self, ranks: Collection[int], generation: int = 0) -> None:
        self._ranks = frozenset(ranks)
        self._generation = generation
        self._sealed: dict[tuple[int, int], Decision] = {}
        self._acks: dict[int, set[int]] = {}
        self.refused = 0

    @property
    def generation(self) -> int:
        """The generation whose acknowledgements count."""
        return self._generation

    def acknowledge(self, rank: int, generation: int, iteration: int) -> bool:
        """Note a rank's acknowledgement; True once every rank of the generation has given it.

        Late writers (an old generation, a stranger, an iteration already sealed) are refused and counted.
        """
        if generation != self._generation or rank not in self._ranks or (generation, iteration) in self._sealed:
            self.refused += 1
            return False
        acks = self._acks.setdefault(iteration, set())
        acks.add(rank)
        return acks == self._ranks

    def missing(self, iteration: int) -> tuple[int, ...]:
        """Ranks whose acknowledgement of `iteration` has not come."""
        return tuple(sorted(self._ranks - self._acks.get(iteration, set())))

    def seal(self, iteration: int, decision: Decision) -> Decision:
        """Seal the current generation's iteration; what was sealed before stands, and is returned."""
        sealed = self._sealed.setdefault((self._generation, iteration), decision)
        self._acks.pop(iteration, None)
        return sealed

    def sealed(self, generation: int, iteration: int) -> Decision | None:
        """The decision, or None while there is none."""
        return self._sealed.get((generation, iteration))

    def advance(self, generation: int, ranks: Collection[int]) -> None:
        """The next generation takes over, named by the last commit; acknowledgements of the old one are void."""
        if generation <= self._generation:
            raise ValueError(f"generation {generation} does not follow {self._generation}")
        self._generation = generation
        self._ranks = frozenset(ranks)
        self._acks.clear()
