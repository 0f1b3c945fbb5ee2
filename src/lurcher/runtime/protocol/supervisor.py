"""The course of a job as its supervisor sees it: start, acknowledgements, seal, border, the next iteration.

It decides nothing about slowness or layouts: it asks the director, and tells it what happened. An iteration counts once every rank of
the generation has acknowledged it and the ledger has sealed it; a layout is in force once every rank is ready for it.
"""

from __future__ import annotations

import msgspec

from lurcher.layout import Layout
from lurcher.runtime.messages import Ack, BenchDone, Border, Broken, Cut, Digests, Failed, FromRank, Ready, Resume, Seal, Stop, Up
from lurcher.runtime.protocol.losses import Losses
from lurcher.runtime.protocol.supervisor_state import NOBODY, Effects, Phase
from lurcher.runtime.protocol.supervisor_values import (
    AskBorder,
    Bordered,
    Chosen,
    Closed,
    Compare,
    Compared,
    End,
    Exited,
    Fence,
    Fenced,
    GraceOver,
    Heard,
    Interrupted,
    LateToJoin,
    Overdue,
    Progress,
    Send,
    Start,
    SupervisorEvent,
    TellBenched,
    TellObserved,
    TellRevived,
    TellStarted,
)


class SupervisorMachine(Losses):
    """One job. An effect that is answered is always the last that matters of its event: nothing else happens until the answer is there,
    but for Fence, whose answer may take as long as a lease."""

    def on(self, event: SupervisorEvent) -> Effects:
        """Take one event."""
        if self.phase == "over":
            return ()
        match event:
            case Heard(rank, message):
                return self._heard(rank, message)
            case Exited(exits):
                dropped = self._not_joining(frozenset(e.rank for e in exits))
                return (*dropped, *self.exited(exits))
            case Closed(rank):
                return self._not_joining(frozenset({rank})) or self._closed(rank)
            case GraceOver():
                return self.grace_over()
            case Overdue(progress):
                return self._overdue(progress)
            case LateToJoin(rank):
                return self._not_joining(frozenset({rank}) & self.starting)
            case Interrupted():
                stop = tuple(Send(rank, Stop()) for rank in sorted(self.alive | self.starting | self.up))
                return (*stop, *self.end(End("interrupted")))
            case Bordered(border, returning):
                return self._seal(border, frozenset(returning))
            case Compared(difference):
                return self.end(End("died", difference)) if difference else self._hold()
            case Fenced(ranks):
                return self.fenced(ranks)
            case Chosen(resumption):
                return self.choose(resumption)

    # --- messages -----------------------------------------------------------------------------------------------------------------

    def _heard(self, rank: int, message: FromRank) -> Effects:
        if rank in self.starting and isinstance(message, Up):
            self.starting, self.up = self.starting - {rank}, self.up | {rank}
        if isinstance(message, Failed) and rank in self.starting | self.up:
            return self._not_joining(frozenset({rank}))
        if rank not in self.alive:
            return ()
        match message:
            case Failed():
                self.suspect(rank, message.reason)
                return ()
            case Broken():
                expected = self.generation if self.phase == "resume" else self.ledger.generation
                if message.generation >= expected and rank not in dict(self.broken):
                    self.broken += ((rank, message.reason),)
                return ()
            case Ack():
                return self._acknowledged(rank, message)
            case Ready():
                return self._ready(rank, message)
            case Digests() | BenchDone():
                return self._reported(rank, message)
            case Up():
                return ()

    def _acknowledged(self, rank: int, ack: Ack) -> Effects:
        named, is_open = (ack.generation, ack.iteration), (self.ledger.generation, self.ledger.iteration)
        if named < is_open or self.is_recovering:
            return ()
        if named > is_open or self.phase != "compute":
            return self._refuse(rank, ack)
        self.ledger = self.ledger.acknowledge(rank, ack.generation, ack.iteration)
        self.finite = self.finite and ack.finite
        return self.advance()

    def _ready(self, rank: int, message: Ready) -> Effects:
        if message.generation > self.generation:
            return self._refuse(rank, message)
        if message.generation == self.generation and (self.target is not None or self.phase == "start"):
            if message.plan:
                self.plan = self.plan or (rank, message.plan)
                if message.plan != self.plan[1]:
                    return self._disagree(rank)
            self.ready |= {rank}
            return self.advance()
        return ()

    def _disagree(self, rank: int) -> Effects:
        """Each rank works out by itself what moves where; if two came to different ends, the state is not what either thinks."""
        assert self.plan is not None
        first = self.name_of(self.plan[0])
        words = f"{first} and {self.name_of(rank)} made different moves out of the order for generation {self.generation}"
        return self.end(End("died", f"{words}; run the same lurcher on all nodes"))

    def _reported(self, rank: int, message: Digests | BenchDone) -> Effects:
        named, is_last = (message.generation, message.iteration), (self.ledger.generation, self.ledger.iteration - 1)
        if named < is_last or self.is_recovering:
            return ()
        if named > is_last:
            return self._refuse(rank, message)
        if isinstance(message, Digests) and self.phase == "digest":
            self.digested |= {rank}
        elif isinstance(message, BenchDone) and self.phase in ("digest", "bench"):
            self.benched |= {rank}
        return self.advance()

    def _refuse(self, rank: int, message: FromRank) -> Effects:
        """It cannot have come to say this: rank and supervisor disagree about where the job is."""
        return self.end(End("died", f"rank {rank} sent {type(message).__name__} while it had {self.what}"))

    def _closed(self, rank: int) -> Effects:
        if not (self.border.stop and rank in self.digested):  # after its last word a rank may go
            self.suspect(rank, "its connection ended")
        return ()

    def _overdue(self, progress: tuple[tuple[int, Progress], ...]) -> Effects:
        """A benchmark that does not end must not hold the training; anything else names who hangs."""
        return self._end_bench(self.waiting) if self.phase == "bench" else self.hangs(progress)

    # --- the course ---------------------------------------------------------------------------------------------------------------

    def advance(self) -> Effects:
        """On to what comes next, once nothing is waited for."""
        if self.waiting:
            return ()
        match self.phase:
            case "start":
                return (TellStarted(), *self.go())
            case "compute":
                return self._ask()
            case "digest":
                self.phase = "compare"
                return (Compare(self.ledger.iteration - 1),)
            case "bench":
                return self._end_bench(NOBODY)
            case "switch":
                return self._switch()
            case "resume":
                return self.resume()
        return ()

    def _ask(self) -> Effects:
        iteration = self.ledger.iteration
        if not self.finite:
            self.ledger, _ = self.ledger.seal(iteration, "ABORT")
            return self.end(End("died", f"iteration {iteration} has a gradient that is not finite; lower optim.lr or set optim.clip_norm"))
        self.phase = "border"
        return (AskBorder(iteration, self.absent),)

    def _seal(self, wanted: Border, returning: frozenset[int]) -> Effects:
        """Seal the iteration, and tell every rank with the border that follows."""
        iteration, ranks = self.ledger.iteration, self.ledger.ranks
        stop = iteration == self.rules.num_iterations - 1
        observed = TellObserved(iteration, self.layout)
        self.ledger, _ = self.ledger.seal(iteration, "COMMIT")
        self.attempts, self.finite = 0, True
        copy = self._copy(iteration) if not stop else ()
        joined = NOBODY if stop else self.up
        layout = None if stop else self._next_layout(wanted.layout, joined)
        bench = tuple(rank for rank in wanted.bench if rank in ranks)
        rounds = tuple(kept for one in wanted.rounds if (kept := tuple(pair for pair in one if ranks.issuperset(pair))))
        self.border = Border(layout, bench, self._verifies(iteration, stop=stop), stop, copy, rounds)
        self.target, self.digested, self.benched, self.ready, self.plan = layout, NOBODY, NOBODY, NOBODY, None
        asked: tuple[tuple[Phase, bool], ...] = (("digest", self.border.digest), ("bench", bool(self.border.tested)), ("switch", layout is not None))
        self.todo = tuple(phase for phase, is_asked in asked if is_asked)
        seals = tuple(Send(rank, Seal(self.ledger.generation, iteration, self.border)) for rank in sorted(ranks))
        joins = tuple(Send(rank, Resume(layout, (), iteration + 1)) for rank in sorted(joined)) if layout is not None else ()
        starts = () if stop else self._start_again(returning & self.absent)
        return (*seals, *joins, observed, *starts, *self._hold())

    def _hold(self) -> Effects:
        """Keep the ranks at the border until what it asks for is done, then let them go."""
        if self.todo:
            self.phase, *rest = self.todo
            self.todo = tuple(rest)
            return self.advance()
        if self.border.stop:
            return self.end(End("done"))
        if self.border.digest or self.border.tested:
            return self.go()
        self.phase = "compute"  # the ranks went on without another word
        return ()

    def _end_bench(self, missing: frozenset[int]) -> Effects:
        return (TellBenched(self.benched, missing), *self._hold())

    def _switch(self) -> Effects:
        """Every rank is ready for it: the layout is in force."""
        assert self.target is not None
        newcomers = self.alive - self.ledger.ranks
        self.layout = self.target
        self.ledger = self.ledger.advance(self.layout.generation, self.alive, self.ledger.iteration)
        return (*self.go(), *(TellRevived(rank) for rank in sorted(newcomers)))

    # --- what goes into a border --------------------------------------------------------------------------------------------------

    def _next_layout(self, wanted: Layout | None, joined: frozenset[int]) -> Layout | None:
        """What the director wants, unless it names a rank that is not there any more, and a place for whoever has come up."""
        if wanted is not None and not self.alive.issuperset(wanted.ranks):
            wanted = None
        self.alive, self.up = self.alive | joined, self.up - joined
        if wanted is None and not joined:
            return None
        return self.named(wanted or self.layout, max(self.generation + 1, wanted.generation if wanted else 0))

    def _verifies(self, iteration: int, *, stop: bool) -> bool:
        every = self.rules.verify_every
        return bool(every) and (iteration % every == every - 1 or stop)

    def _copy(self, iteration: int) -> tuple[tuple[int, int], ...]:
        """Who keeps whose copy after this iteration. All have acknowledged it, so they all have the copy ordered before it.

        A copy is due again after so many iterations, and at once where ranks are lost that had a part in the last.
        """
        if self.complete is None:
            return ()
        if self.latest is not None:
            self.complete, self.latest = self.latest, None
        age = iteration + 1 - self.complete.iteration
        holders = self.holders_of(self.layout) if age >= self.rules.copy_every or self.complete.gone else ()
        self.latest = Cut(iteration + 1, self.layout, holders) if holders else None
        return holders

    # --- ranks that come back -----------------------------------------------------------------------------------------------------

    def _start_again(self, ranks: frozenset[int]) -> Effects:
        self.absent, self.starting = self.absent - ranks, self.starting | ranks
        spec_layout = msgspec.structs.replace(self.layout, standby=tuple(sorted({*self.layout.standby, *ranks})))
        return tuple(Start(rank, spec_layout, self.ledger.iteration) for rank in sorted(ranks))

    def _not_joining(self, ranks: frozenset[int]) -> Effects:
        """Of these, whoever was about to join does not."""
        dropped = ranks & (self.starting | self.up)
        self.starting, self.up, self.absent = self.starting - dropped, self.up - dropped, self.absent | dropped
        return (Fence(dropped),) if dropped else ()
