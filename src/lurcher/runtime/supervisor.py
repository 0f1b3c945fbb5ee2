"""Runs a job from outside its ranks: starts the processes, feeds the protocol's machine with what happens, carries out what it wants.

It decides nothing: when an iteration counts and who is lost, the machine says (`protocol/supervisor.py`); layouts are the director's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import TypeVar

import numpy as np
from torch.distributed import TCPStore

from lurcher.config import JobConfig
from lurcher.errors import JobDied
from lurcher.layout import Layout
from lurcher.records import EVENT, Place
from lurcher.runtime import launch
from lurcher.runtime.copies import choose_holders
from lurcher.runtime.messages import Ack, BenchDone, Digests, FromRank, Spec, ToRank, receive_from_rank, send
from lurcher.runtime.protocol.lease import MARGIN_S, lease_s
from lurcher.runtime.protocol.supervisor import SupervisorMachine
from lurcher.runtime.protocol.supervisor_values import (
    AskBorder,
    AskDirector,
    Bordered,
    Chosen,
    Closed,
    Compare,
    Compared,
    End,
    Exit,
    Exited,
    Fence,
    Fenced,
    GraceOver,
    Heard,
    Interrupted,
    LateToJoin,
    Overdue,
    Progress,
    Rules,
    Send,
    Start,
    SupervisorEffect,
    SupervisorEvent,
    TellBenched,
    TellObserved,
    TellResumed,
    TellRevived,
    TellStarted,
)
from lurcher.runtime.reports import Director, Outcome, StepReport
from lurcher.runtime.worker import PROGRESS_FIELDS, rank_main

M = TypeVar("M", Ack, BenchDone, Digests)

POLL_S = 0.2
GRACE_S = 1.0
"""After a rank reports a failure: time for the process that caused it to be seen dead, so that the culprit is named and not a victim."""
INTERRUPTED_S = 0.5
"""Longest wait for the ranks to end after Ctrl-C."""


class Supervisor:
    """One job. `should_stop` is asked at every poll: a Ctrl-C ends the job within a fraction of a second.

    `rank_main` is what a rank's process runs, with the arguments of `worker.rank_main`; it must be picklable.
    """

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        places: tuple[Place, ...],
        director: Director,
        should_stop: Callable[[], bool],
        rank_main: Callable[..., None] = rank_main,
    ) -> None:
        self._config = config
        self._layout = layout
        self._places = {p.rank: p for p in places}
        self._director = director
        self._should_stop = should_stop
        self._rank_main = rank_main
        self._machine = SupervisorMachine(_rules(config), layout, self._name, self._holders)
        self._ranks: dict[int, launch.RankProcess] = {}
        self._started: list[launch.RankProcess] = []
        self._progress: MutableSequence[int] = []
        self._port = 0
        self._said: dict[tuple[int, type], FromRank] = {}  # what each rank said last, of every kind
        self._phase = ""
        self._phase_s = 0.0
        self._grace_s: float | None = None
        self._missed_s: float | None = None
        self._end: End | None = None

    def run(self) -> Outcome:
        """The whole job; raises JobDied with one line naming rank, host and reason. Leaves no process behind."""
        listener = launch.loopback_socket()
        timeout = timedelta(seconds=self._config.run.start_deadline_s)
        self._port = listener.getsockname()[1]
        store = TCPStore(launch.LOOPBACK, self._port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach())
        patience_s = 0.0
        try:
            self._start()
            while self._end is None:
                for event in self._happened():
                    self._feed(event)
                late = self._late()
                if late is not None:
                    self._feed(late)
            if self._end.how == "died":
                raise JobDied(self._end.words)
            patience_s = self._config.run.stop_deadline_s if self._end.how == "done" else INTERRUPTED_S
            return Outcome(self._end.how, self._machine.ledger.iteration, self._sketch())
        finally:
            launch.end_ranks(self._started, patience_s)
            del store

    # --- events -------------------------------------------------------------------------------------------------------------------

    def _happened(self) -> list[SupervisorEvent]:
        """What has happened, or does within a moment."""
        if self._should_stop():
            return [Interrupted()]
        pipes = {r.conn: r for r in self._ranks.values() if not r.is_closed}
        running = [r.process.sentinel for r in self._ranks.values() if not r.is_over and r.process.exitcode is None]
        heard: list[SupervisorEvent] = []
        for ready in wait([*pipes, *running], timeout=POLL_S):
            if isinstance(ready, Connection):
                heard.append(self._hear(pipes[ready]))
        return [*heard, *self._exits()]

    def _hear(self, r: launch.RankProcess) -> SupervisorEvent:
        try:
            message = receive_from_rank(r.conn)
        except (EOFError, ConnectionResetError):
            r.is_closed = True
            return Closed(r.rank)
        self._said[r.rank, type(message)] = message
        return Heard(r.rank, message)

    def _exits(self) -> list[SupervisorEvent]:
        """Processes that ended otherwise than well, once all that they said was heard: all in one, for a node takes its ranks along."""
        exits = []
        for r in self._ranks.values():
            code = None if r.is_over else r.process.exitcode
            if code and (r.is_closed or not r.conn.poll(0)):
                r.is_over = True
                exits.append(Exit(r.rank, code < 0, r.how_it_ended()))
        return [Exited(tuple(exits))] if exits else []

    def _late(self) -> SupervisorEvent | None:
        """A deadline that has passed. That of a phase runs from the last sign of progress of any rank."""
        machine, now_s = self._machine, time.monotonic()
        phase = f"{machine.phase} {machine.what}"
        if phase != self._phase:
            self._phase, self._phase_s = phase, now_s
        self._grace_s = (self._grace_s or now_s) if machine.in_grace else None
        if self._grace_s is not None and now_s - self._grace_s > GRACE_S:
            self._grace_s = None
            return GraceOver()
        progress = tuple((rank, self._progress_of(rank)) for rank in sorted(machine.alive))
        if machine.waiting and now_s - max([self._phase_s] + [p.at_ns * 1e-9 for _, p in progress]) > machine.deadline_s:
            self._phase = ""
            return Overdue(progress)
        start_s = self._config.run.start_deadline_s
        return next((LateToJoin(rank) for rank in sorted(machine.starting) if now_s - self._ranks[rank].started_s > start_s), None)

    def _progress_of(self, rank: int) -> Progress:
        base = rank * PROGRESS_FIELDS
        return Progress(*self._progress[base : base + PROGRESS_FIELDS])

    # --- effects ------------------------------------------------------------------------------------------------------------------

    def _feed(self, event: SupervisorEvent) -> None:
        """Tell the machine, carry out what it wants, and tell it the answers."""
        events = deque([event])
        while events:
            effects = self._machine.on(events.popleft())
            if self._missed_s is None and self._machine.is_recovering:
                self._missed_s = time.monotonic()
            for effect in effects:
                answer = self._do(effect)
                if answer is not None:
                    events.append(answer)

    def _do(self, effect: SupervisorEffect) -> SupervisorEvent | None:
        """Carry out one effect; the answer, where it has one."""
        match effect:
            case Send(rank, message):
                self._send(rank, message)
            case AskBorder(iteration, absent):
                border = self._director.border(iteration)
                asks = self._config.run.respawn and bool(absent)
                return Bordered(border, self._director.returning(tuple(sorted(absent))) if asks else ())
            case Compare(iteration):
                ranks = sorted(self._machine.digested)
                return Compared(differing({rank: self._last(rank, Digests).digests for rank in ranks}, iteration))
            case Fence(ranks):
                return self._fence(ranks)
            case AskDirector(lost, layout, iteration, why, cut):
                return Chosen(self._director.lost(lost, layout, iteration, why, cut))
            case Start(rank, layout, iteration):
                self._start_process(Spec(rank, self._config, layout, launch.LOOPBACK, self._port, iteration, joins=True))
            case End():
                self._end = effect
            case _:
                self._tell(effect)
        return None

    def _tell(self, effect: SupervisorEffect) -> None:
        """Let the director know."""
        director = self._director
        match effect:
            case TellStarted():
                director.started({rank: r.pid for rank, r in self._ranks.items()})
            case TellObserved(iteration, layout):
                director.observe(_report(iteration, layout, [self._last(rank, Ack) for rank in layout.ranks]))
            case TellBenched(ranks, missing):
                results = tuple(result for rank in sorted(ranks) for result in self._last(rank, BenchDone).results)
                director.benched(results, tuple(sorted(missing)))
            case TellResumed(layout, iteration):
                pause_s = time.monotonic() - (self._missed_s or 0.0)
                self._missed_s = None
                director.resumed(layout, iteration, pause_s)
            case TellRevived(rank):
                director.revived(rank, self._ranks[rank].pid)

    def _send(self, rank: int, message: ToRank) -> None:
        try:
            send(self._ranks[rank].conn, message)
        except (BrokenPipeError, ConnectionResetError):
            return  # it is dead, and the next poll says so

    def _fence(self, ranks: frozenset[int]) -> Fenced:
        lost = [self._ranks.pop(rank) for rank in sorted(ranks)]
        left = launch.fence(lost, lease_s(self._config.run.step_deadline_s) + MARGIN_S)
        self._started = [r for r in self._started if r not in lost or r in left]
        return Fenced(ranks)

    # --- processes ----------------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        members = self._layout.members
        self._progress = launch.warm_context().RawArray("q", (max(members) + 1) * PROGRESS_FIELDS)
        for rank in members:
            self._start_process(Spec(rank, self._config, self._layout, launch.LOOPBACK, self._port))

    def _start_process(self, spec: Spec) -> None:
        base = spec.rank * PROGRESS_FIELDS
        self._progress[base : base + PROGRESS_FIELDS] = [0] * PROGRESS_FIELDS
        self._ranks[spec.rank] = launch.start_rank(spec, self._rank_main, self._progress)
        self._started.append(self._ranks[spec.rank])

    # --- facts --------------------------------------------------------------------------------------------------------------------

    def _last(self, rank: int, kind: type[M]) -> M:
        message = self._said[rank, kind]
        assert isinstance(message, kind)
        return message

    def _sketch(self) -> dict[str, tuple[float, ...]]:
        """Of the state in the end, from those who hashed it: any owner of an atom tells the same of it."""
        last = [self._last(rank, Digests) for rank in sorted(self._machine.digested)]
        return {name: numbers for told in last for name, numbers in told.sketch.items()}

    def _name(self, rank: int) -> str:
        place = self._places.get(rank)
        return f"rank {rank} (host {place.host}, pid {self._ranks[rank].pid})" if place else f"rank {rank}"

    def _holders(self, layout: Layout) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(choose_holders(layout, {rank: place.host for rank, place in self._places.items()}).items()))


def differing(digests: Mapping[int, Mapping[str, str]], iteration: int) -> str:
    """Two owners of one slice that hold different bits after the iteration, in words; empty if there are none."""
    seen: dict[str, tuple[int, str]] = {}
    for rank, of_rank in digests.items():
        for name, digest in of_rank.items():
            owner, first = seen.setdefault(name, (rank, digest))
            if digest != first:
                return f"ranks {owner} and {rank} hold different bits of {name} after iteration {iteration}: the training has split"
    return ""


def _rules(config: JobConfig) -> Rules:
    run, recovers = config.run, config.run.on_death == "recover"
    copy_every = run.copy_every if recovers else 0
    verify_every = run.verify_every or (config.job.iterations if run.verify else 0)  # the last iteration is always among them
    return Rules(config.job.iterations, recovers, verify_every, copy_every, run.start_deadline_s, run.step_deadline_s)


def _report(iteration: int, layout: Layout, acks: list[Ack]) -> StepReport:
    """What the working ranks did; a standby only waited."""
    first = acks[0]
    events = np.concatenate([np.frombuffer(ack.events, dtype=EVENT) for ack in acks])
    usage = np.concatenate([np.frombuffer(ack.usage, dtype="<i8").reshape(-1, 2) for ack in acks])
    windows = {ack.rank: (ack.start_ns, ack.end_ns) for ack in acks}
    moved_bytes, copy_s = sum(ack.moved_bytes for ack in acks), max(ack.copy_s for ack in acks)
    copy_bytes = tuple(ack.copy_bytes for ack in acks)
    return StepReport(iteration, layout, first.loss, first.grad_norm, first.lr, events, windows, usage, moved_bytes, copy_s, copy_bytes)
