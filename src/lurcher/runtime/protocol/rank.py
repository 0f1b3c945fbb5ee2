"""What a rank does, in which order: compute, acknowledge, wait for the seal, step, cross the border; again.

It decides nothing. It never steps without the seal of just this iteration, and never begins under a layout before the word to go, for
which the supervisor has heard that all are ready. Messages of an old generation, or that come twice, change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lurcher.layout import Layout
from lurcher.runtime.messages import Border, Broken, Failed, Go, Ready, Resume, Seal, Stop, ToRank, Up
from lurcher.runtime.protocol.rank_values import (
    Abandon,
    Act,
    Bench,
    Build,
    Compute,
    Digest,
    Discard,
    Done,
    End,
    Heard,
    KeepCopy,
    LeaseOver,
    PeerLost,
    Prepare,
    RankEffect,
    RankEvent,
    Send,
    Step,
    Switch,
)

Phase = Literal["building", "computing", "crossing", "preparing", "waits for a place", "waits for the seal", "waits for go", "broken", "over"]
WAITS: dict[str, str] = {
    "waits for a place": "a layout to take part in",
    "waits for the seal": "the sealed decision",
    "waits for go": "the word to go on",
    "broken": "a layout without the rank that is lost",
}
"""The phases in which nothing is under way but the wait for a message."""
Effects = tuple[RankEffect, ...]


class RankMachine:
    """One rank. At most one act is under way, always the last of the effects; while it is, only its end is an event.

    All attributes are immutable values, so that a shallow copy is a snapshot.
    """

    def __init__(self, rank: int, pid: int, layout: Layout, iteration: int, *, recovers: bool, joins: bool) -> None:
        self.rank, self.pid = rank, pid
        self.recovers = recovers
        self.phase: Phase = "waits for a place" if joins else "building"
        self.iteration = iteration  # the next one to be computed, or the one that is
        self.generation = layout.generation  # of the layout in force
        self.target: Layout = layout  # what is being prepared, or was last
        self.has_begun = False  # has computed under some layout, so that there is a state to go on from
        self.resumes = False  # what is prepared follows a loss, not a border
        self.border = Border()
        self.todo: tuple[Act, ...] = ()  # what is left to do at this border

    def begin(self) -> Effects:
        """What to do first."""
        if self.phase == "waits for a place":
            return (Send(Up(self.rank, self.pid)),)
        return (Build(self.target, self.iteration),)

    @property
    def waits_for(self) -> str:
        """What it waits to hear, in words; empty while something is under way."""
        return WAITS.get(self.phase, "")

    def on(self, event: RankEvent) -> Effects:
        """Take one event."""
        if self.phase == "over":
            return ()
        match event:
            case Heard(message):
                return self._heard(message)
            case Done(message, plan):
                told = () if message is None else (Send(message),)
                return (*told, *self._done(plan))
            case PeerLost(reason):
                return self._peer_lost(reason)
            case LeaseOver(after_s):
                return self._fail(f"rank {self.rank} waited {after_s:g} s for {self.waits_for}")
        return self._end(End("stopped"))  # the supervisor is gone

    # --- messages -----------------------------------------------------------------------------------------------------------------

    def _heard(self, message: ToRank) -> Effects:
        match message:
            case Stop():
                return self._end(End("stopped"))
            case Resume():
                return self._resume(message)
            case Seal(generation, iteration, border):
                if self.phase == "waits for the seal" and (generation, iteration) == (self.generation, self.iteration):
                    return self._step(border)
            case Go(generation, iteration):
                if self.phase == "waits for go" and (generation, iteration) == (self.target.generation, self.iteration):
                    return self._go()
        named, present = (message.generation, message.iteration), (self.target.generation, self.iteration)
        if named < present or (named == present and isinstance(message, Go)):
            return ()  # late: it was dealt with, or is void
        return self._fail(f"rank {self.rank} expected {self.waits_for}, got {type(message).__name__} of iteration {message.iteration}")

    def _step(self, border: Border) -> Effects:
        step = Step(self.iteration)
        self.iteration += 1
        self.border, self.todo = border, self._acts(border)
        return (step, *self._cross())

    def _go(self) -> Effects:
        """All are ready: on with the next iteration, under the layout that was prepared if there is one."""
        switch: Effects = (Switch(),) if self.has_begun and self.generation != self.target.generation else ()
        discard: Effects = (Discard(),) if self.resumes or not self.has_begun else ()
        self.generation, self.has_begun, self.resumes = self.target.generation, True, False
        return (*switch, *discard, *self._compute())

    def _resume(self, order: Resume) -> Effects:
        """Another layout, because ranks are lost or this one takes part from now on."""
        if order.layout.generation <= self.target.generation:
            return ()
        self.target, self.iteration, self.resumes = order.layout, order.iteration, True
        if not self.has_begun:
            self.phase = "building"
            return (Build(order.layout, order.iteration),)
        self.phase = "preparing"
        return (Abandon(), Prepare(order.layout, order.lost, order.cut))

    # --- ends of acts -------------------------------------------------------------------------------------------------------------

    def _done(self, plan: str) -> Effects:
        match self.phase:
            case "computing":
                self.phase = "waits for the seal"
                return ()
            case "crossing":
                return self._cross()
        self.phase = "waits for go"
        return (Send(Ready(self.rank, self.pid, self.target.generation, plan)),)

    def _peer_lost(self, reason: str) -> Effects:
        """Let everything go, so that others notice too, and wait for the layout to go on with."""
        if not self.recovers or not self.has_begun:
            return self._fail(reason)
        self.phase = "broken"
        return (Abandon(), Send(Broken(self.rank, self.target.generation, self.iteration, reason)))

    # --- the border ---------------------------------------------------------------------------------------------------------------

    def _acts(self, border: Border) -> tuple[Act, ...]:
        """What the border asks of this rank before it says that it is ready, in the order in which all do it."""
        done = self.generation, self.iteration - 1
        copy: Sequence[Act] = [KeepCopy(self.iteration, border.copy)] if border.copy else []
        digest: Sequence[Act] = [Digest(*done)] if border.digest else []
        bench: Sequence[Act] = [Bench(*done, self.rank in border.bench, border.rounds)] if self.rank in border.tested else []
        return (*copy, *digest, *bench)

    def _cross(self) -> Effects:
        """The next thing that the border asks for."""
        if self.todo:
            act, *rest = self.todo
            self.phase, self.todo = "crossing", tuple(rest)
            return (act,)
        if self.border.stop:
            return self._end(End("done"))
        if self.border.layout is not None:
            self.phase, self.target = "preparing", self.border.layout
            return (Prepare(self.border.layout),)
        if self.border.digest or self.border.tested:
            self.phase = "waits for go"
            return ()
        return self._compute()

    def _compute(self) -> Effects:
        self.phase = "computing"
        return (Compute(self.generation, self.iteration),)

    def _fail(self, reason: str) -> Effects:
        return (Send(Failed(self.rank, self.iteration, reason)), *self._end(End("failed", reason)))

    def _end(self, end: End) -> Effects:
        self.phase = "over"
        return (end,)
