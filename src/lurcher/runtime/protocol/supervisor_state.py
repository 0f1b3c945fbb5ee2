"""What a supervisor knows in the course of a job, and what follows from it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from lurcher.layout import Layout
from lurcher.runtime.ledger import Ledger
from lurcher.runtime.messages import Border, Cut, Go, ToRank
from lurcher.runtime.protocol.supervisor_values import End, Rules, Send, SupervisorEffect

Phase = Literal["start", "compute", "border", "digest", "compare", "bench", "switch", "fence", "choose", "resume", "over"]
Effects = tuple[SupervisorEffect, ...]
Holders = Callable[[Layout], tuple[tuple[int, int], ...]]
"""Who keeps whose copy under a layout: (rank, holder)."""
NOBODY: frozenset[int] = frozenset()


class SupervisorState:
    """One job. All attributes are immutable values, so that a shallow copy is a snapshot."""

    def __init__(self, rules: Rules, layout: Layout, name_of: Callable[[int], str], holders_of: Holders) -> None:
        self.rules, self.name_of, self.holders_of = rules, name_of, holders_of
        self.num_started = len(layout.members)
        self.phase: Phase = "start"
        self.layout = layout  # in force
        self.ledger = Ledger.open(layout.members, layout.generation)
        self.generation = layout.generation  # the highest one named so far
        self.alive = frozenset(layout.members)  # who takes part, or is named to
        self.finite = True  # all that was acknowledged for the open iteration
        # at a border
        self.border = Border()
        self.todo: tuple[Phase, ...] = ()  # what it asks for, beyond the present phase
        self.target: Layout | None = None  # the layout that the ranks prepare
        self.digested, self.benched, self.ready = NOBODY, NOBODY, NOBODY
        self.plan: tuple[int, str] | None = None  # the first rank that was ready with one, and the hash of it
        # losses
        self.broken: tuple[tuple[int, str], ...] = ()  # who has lost a peer, and the reason it gave
        self.failed: tuple[tuple[int, str], ...] = ()  # who has ended itself, or its pipe has; perhaps because of somebody else
        self.gone = NOBODY  # lost since the job last went on
        self.unfenced = NOBODY
        self.why = ""
        self.attempts = 0  # to go on since the last commit
        self.resume_at = 0
        # copies
        self.complete: Cut | None = Cut(0, layout, ()) if rules.copy_every else None  # every rank makes the initial state from the seed
        self.latest: Cut | None = None  # ordered; whether all have it is not known yet
        self.chosen: Cut | None = None  # everybody goes back to it
        # ranks that come back
        self.absent = NOBODY
        self.starting = NOBODY
        self.up = NOBODY

    @property
    def waiting(self) -> frozenset[int]:
        """Ranks that have not said yet what the phase waits for."""
        match self.phase:
            case "compute":
                return self.ledger.missing & self.alive
            case "digest":
                return (self.ledger.ranks & self.alive) - self.digested
            case "bench":
                return (self.border.tested & self.alive) - self.benched
            case "start" | "switch" | "resume":
                return self.alive - self.ready
        return NOBODY

    @property
    def what(self) -> str:
        """What the ranks waited for have to do."""
        match self.phase:
            case "start":
                return "to be built"
            case "digest":
                return "to hash its state"
            case "bench":
                return "to finish its benchmark"
            case "switch" | "resume":
                return f"to get ready for generation {self.generation}"
        return f"to acknowledge iteration {self.ledger.iteration}"

    @property
    def deadline_s(self) -> float:
        """How long no rank may make progress."""
        return self.rules.start_deadline_s if self.phase == "start" else self.rules.step_deadline_s

    @property
    def in_grace(self) -> bool:
        """Whether something is wrong whose culprit may not be known yet."""
        waiting = self.waiting
        return bool(waiting and waiting <= dict(self.broken).keys()) or (self.phase != "over" and bool(self.failed))

    @property
    def is_recovering(self) -> bool:
        """Whether the open iteration is given up."""
        return self.phase in ("fence", "choose", "resume")

    def tell_all(self, message: ToRank) -> Effects:
        """The same to everybody who takes part."""
        return tuple(Send(rank, message) for rank in sorted(self.alive))

    def go(self) -> Effects:
        """Everybody computes the open iteration."""
        self.phase, self.target = "compute", None
        return self.tell_all(Go(self.ledger.generation, self.ledger.iteration))

    def named(self, layout: Layout, generation: int) -> Layout:
        """The layout with everybody in it: who has no work stands by."""
        self.generation = generation
        return msgspec.structs.replace(layout, standby=tuple(sorted(self.alive - set(layout.ranks))), generation=generation)

    def end(self, end: End) -> Effects:
        """The job is over."""
        self.phase = "over"
        return (end,)
