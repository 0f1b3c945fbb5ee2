"""One sealed decision per (generation, iteration): COMMIT or ABORT, written once. A frozen value: what is sealed is a new ledger.

The absence of a record is no decision: a recovery first seals ABORT, or obeys the COMMIT that won the race.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

Decision = Literal["COMMIT", "ABORT"]


class Term(msgspec.Struct, frozen=True):
    """The decisions of one generation: COMMIT for iterations `first` to `end - 1`; `end` is open, or ABORT where `aborted`, the generation's last."""

    generation: int
    first: int
    end: int
    aborted: bool = False

    def decision(self, iteration: int) -> Decision | None:
        """What is sealed about an iteration; None while nothing is."""
        if self.first <= iteration < self.end:
            return "COMMIT"
        return "ABORT" if self.aborted and iteration == self.end else None


class Ledger(msgspec.Struct, frozen=True):
    """Write-once decisions, and the acknowledgements of the open iteration that lead to the next one."""

    ranks: frozenset[int]
    """Whose acknowledgements a COMMIT needs."""
    term: Term
    acked: frozenset[int] = frozenset()
    past: tuple[Term, ...] = ()

    @classmethod
    def open(cls, ranks: Collection[int], generation: int = 0, iteration: int = 0) -> Ledger:
        """Nothing is sealed; `iteration` is the first that can be."""
        return cls(frozenset(ranks), Term(generation, iteration, iteration))

    @property
    def generation(self) -> int:
        """The generation whose acknowledgements count."""
        return self.term.generation

    @property
    def iteration(self) -> int:
        """The next one to be sealed."""
        return self.term.end

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose acknowledgement of the open iteration has not come."""
        return self.ranks - self.acked

    def acknowledge(self, rank: int, generation: int, iteration: int) -> Ledger:
        """Note a rank's acknowledgement. Late writers (an old generation, a stranger, an iteration already sealed) change nothing."""
        is_open = (generation, iteration) == (self.generation, self.iteration) and not self.term.aborted
        return msgspec.structs.replace(self, acked=self.acked | {rank}) if is_open and rank in self.ranks else self

    def seal(self, iteration: int, decision: Decision) -> tuple[Ledger, Decision]:
        """Seal the generation's open iteration; what was sealed before stands, and is returned.

        Raises ValueError for a COMMIT that lacks acknowledgements, and for an iteration that is not open yet.
        """
        sealed = self.term.decision(iteration)
        if sealed is not None:
            return self, sealed
        if self.term.aborted or iteration != self.iteration:
            raise ValueError(f"iteration {iteration} of generation {self.generation} is not open; that is {self.iteration}")
        if decision == "ABORT":
            return msgspec.structs.replace(self, term=msgspec.structs.replace(self.term, aborted=True)), "ABORT"
        if self.missing:
            raise ValueError(f"iteration {iteration} lacks the acknowledgements of ranks {sorted(self.missing)}")
        return msgspec.structs.replace(self, term=msgspec.structs.replace(self.term, end=iteration + 1), acked=frozenset()), "COMMIT"

    def sealed(self, generation: int, iteration: int) -> Decision | None:
        """The decision, or None while there is none."""
        return next((term.decision(iteration) for term in (self.term, *self.past) if term.generation == generation), None)

    def advance(self, generation: int, ranks: Collection[int], iteration: int) -> Ledger:
        """The next generation takes over with `iteration`; acknowledgements of the old one are void."""
        if generation <= self.generation:
            raise ValueError(f"generation {generation} does not follow {self.generation}")
        return Ledger(frozenset(ranks), Term(generation, iteration, iteration), past=(self.term, *self.past))
