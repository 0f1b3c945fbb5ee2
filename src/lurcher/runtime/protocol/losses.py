"""Ranks that die, hang or lose their connections: who it was, and how the others go on.

Order: end the lost processes for certain, seal the open iteration ABORT, ask the director, have everybody prepare its layout, go. Whoever
is lost on the way joins the lost, and it begins anew with all others where they were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

import msgspec

from lurcher.runtime.messages import Cut, Resume
from lurcher.runtime.protocol.supervisor_state import NOBODY, Effects, SupervisorState
from lurcher.runtime.protocol.supervisor_values import AskDirector, End, Exit, Fence, Progress, TellResumed, TellRevived
from lurcher.runtime.reports import Resumption

MORE_ATTEMPTS = 3
"""To go on without a commit in between, beyond one for each rank that could be lost on the way."""


def most_behind(ranks: Collection[int], progress: tuple[tuple[int, Progress], ...]) -> int:
    """The absent rank, not its waiters: the one whose own progress is least."""
    return min((how_far, rank) for rank, how_far in progress if rank in ranks)[1]


class Losses(SupervisorState, ABC):
    """The part of the supervisor that deals with losses."""

    @abstractmethod
    def advance(self) -> Effects:
        """On to what comes next, once nothing is waited for."""

    # --- who it was ---------------------------------------------------------------------------------------------------------------

    def exited(self, exits: tuple[Exit, ...]) -> Effects:
        """A process that was killed is lost; one that failed may be a victim of another that will be seen in a moment."""
        known = tuple(e for e in exits if e.rank in self.alive)
        killed = [e for e in known if e.killed]
        if killed:
            words = " and ".join(f"{self.name_of(e.rank)} {e.how}" for e in killed)
            return self.lose(frozenset(e.rank for e in killed), f"{words} in iteration {self.ledger.iteration}")
        for e in known:
            self.suspect(e.rank, e.how)
        return ()

    def suspect(self, rank: int, how: str) -> None:
        """Something ended on a rank's side; the first that is heard of it is the most telling."""
        if rank in self.alive and rank not in dict(self.failed):
            self.failed += ((rank, how),)

    def grace_over(self) -> Effects:
        """Nobody else was to blame."""
        if not self.in_grace:
            return ()
        if self.failed:
            first, how = self.failed[0]
            words = f"{self.name_of(first)} failed in iteration {self.ledger.iteration}: {how}"
            silent = sorted(self.waiting - dict(self.failed).keys()) if self.phase == "start" else []
            if silent:  # those who wait for them give up before the supervisor does
                words = f"{' and '.join(map(self.name_of, silent))} did not come up; {words}"
            return self.lose(frozenset(dict(self.failed)), words)
        ranks, reasons = zip(*sorted(self.broken), strict=True)
        return self.lose(NOBODY, f"ranks {list(ranks)} lost a connection, and none is dead: {reasons[0]}")

    def hangs(self, progress: tuple[tuple[int, Progress], ...]) -> Effects:
        """Who has lost a peer and says so does not hang; of the others, the one that is most behind does."""
        silent = self.waiting - dict(self.broken).keys()
        if not silent:
            return self.lose(NOBODY, f"no rank got on for {self.deadline_s:g} s; each had {self.what}") if self.waiting else ()
        stuck = most_behind(silent, progress)
        return self.lose(frozenset({stuck}), f"{self.name_of(stuck)} made no progress for {self.deadline_s:g} s; it had {self.what}")

    # --- on without them ----------------------------------------------------------------------------------------------------------

    def lose(self, ranks: frozenset[int], words: str) -> Effects:
        """These ranks are lost, or all connections without a culprit."""
        self.alive -= ranks
        self.absent |= ranks
        self.failed = tuple((rank, how) for rank, how in self.failed if rank not in ranks)
        if not self.rules.recovers or self.phase == "start" or not self.alive:
            return self.end(End("died", words))
        if self.border.stop:  # all is committed; what is left of the border is done by the others
            return (Fence(ranks), *self.advance()) if ranks else self.end(End("died", words))
        self.gone |= ranks
        self.unfenced |= ranks
        self.why, self.target, self.broken = words, None, ()
        self.attempts += 1
        self.phase = "fence"
        return (Fence(ranks),) if ranks else self.fenced(NOBODY)

    def fenced(self, ranks: frozenset[int]) -> Effects:
        """The lost can do nothing any more: give the open iteration up and ask how to go on."""
        self.unfenced -= ranks
        if self.phase != "fence" or self.unfenced:
            return ()
        self.ledger, _ = self.ledger.seal(self.ledger.iteration, "ABORT")
        if self.attempts > self.num_started + MORE_ATTEMPTS:
            return self.end(End("died", self.why))
        self.phase = "choose"
        return (AskDirector(tuple(sorted(self.gone)), self.layout, self.ledger.iteration, self.why, self.complete),)

    def choose(self, resumption: Resumption | None) -> Effects:
        """The director's answer."""
        if resumption is None:
            return self.end(End("died", self.why))
        strangers = sorted(set(resumption.layout.ranks) - self.alive)
        if strangers:
            return self.end(End("died", f"{self.why}; the layout to go on with names ranks {strangers}, which are not there"))
        self.chosen = resumption.cut
        self.resume_at = self.ledger.iteration if self.chosen is None else self.chosen.iteration
        self.target = self.named(resumption.layout, self.generation + 1)
        self.phase, self.ready, self.plan, self.broken = "resume", NOBODY, None, ()
        return self.tell_all(Resume(self.target, tuple(sorted(self.gone)), self.resume_at, self.chosen))

    def resume(self) -> Effects:
        """Everybody is ready to go on."""
        assert self.target is not None
        newcomers = self.alive - self.ledger.ranks
        self.layout = self.target
        self.ledger = self.ledger.advance(self.layout.generation, self.alive, self.resume_at)
        self.complete, self.latest, self.chosen = self._without_gone(self.chosen or self.complete), None, None
        self.gone = NOBODY
        revived = tuple(TellRevived(rank) for rank in sorted(newcomers))
        return (*self.go(), TellResumed(self.layout, self.ledger.iteration), *revived)

    def _without_gone(self, cut: Cut | None) -> Cut | None:
        return cut and msgspec.structs.replace(cut, gone=tuple(sorted({*cut.gone, *self.gone})))
