"""Runs a job from outside its ranks: launches, collects acknowledgements, seals, holds the borders, notices the dead.

It decides nothing about slowness: at each border it asks the director, and tells it what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, MutableSequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import TypeVar

import msgspec
import numpy as np
from torch.distributed import TCPStore

from lurcher.config import JobConfig
from lurcher.errors import JobDied
from lurcher.layout import Layout
from lurcher.records import EVENT, Place
from lurcher.runtime import launch
from lurcher.runtime.ledger import Ledger
from lurcher.runtime.messages import (
    Ack,
    BenchDone,
    Border,
    Broken,
    Digests,
    Failed,
    FromRank,
    Go,
    Ready,
    Resume,
    Seal,
    Stop,
    ToRank,
    receive_from_rank,
    send,
)
from lurcher.runtime.reports import Director, Outcome, StepReport
from lurcher.runtime.worker import PROGRESS_FIELDS, rank_main

M = TypeVar("M", Ready, Ack, BenchDone, Digests)

POLL_S = 0.2
MORE_ATTEMPTS = 3
"""To go on under one layout, beyond one for each rank that could be lost on the way."""
GRACE_S = 1.0
"""After a rank reports a failure: time for the process that caused it to be seen dead, so that the culprit is named and not a victim."""


class Lost(Exception):
    """Ranks are gone; the words name them and say how."""

    def __init__(self, ranks: Collection[int], words: str) -> None:
        super().__init__(words)
        self.ranks = frozenset(ranks)
        self.words = words


class Supervisor:
    """One job. `should_stop` is asked at every poll: a Ctrl-C ends the job within a fraction of a second."""

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        places: tuple[Place, ...],
        director: Director,
        should_stop: Callable[[], bool],
    ) -> None:
        self._config = config
        self._layout = layout
        self._places = {p.rank: p for p in places}
        self._director = director
        self._should_stop = should_stop
        self._ledger = Ledger(layout.members)
        self._ranks: dict[int, launch.RankProcess] = {}
        self._progress: MutableSequence[int] = []
        self._iteration = 0  # the next one to be sealed
        self._generation = layout.generation  # the highest one named so far

    def run(self) -> Outcome:
        """The whole job; raises JobDied with one line naming rank, host and reason. Leaves no process behind."""
        listener = launch.loopback_socket()
        timeout = timedelta(seconds=self._config.run.start_deadline_s)
        port = listener.getsockname()[1]
        store = TCPStore(launch.LOOPBACK, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach())
        started, self._progress = launch.start_ranks(self._config, self._layout, port, rank_main, PROGRESS_FIELDS)
        self._ranks = {r.rank: r for r in started}
        patience_s = 0.0
        try:
            outcome = self._run_iterations()
            patience_s = self._config.run.stop_deadline_s
            return outcome
        except Lost as lost:
            raise JobDied(lost.words) from None
        except _Interrupted:
            self._broadcast(Stop())
            patience_s = 0.5
            return Outcome("interrupted", self._iteration)
        finally:
            launch.end_ranks(started, patience_s)
            del store

    def _run_iterations(self) -> Outcome:
        ready = self._collect(Ready, self._config.run.start_deadline_s, "to be built")
        self._director.started({r: m.pid for r, m in ready.items()})
        self._broadcast(Go())
        while True:
            try:
                self._iterate()
                return Outcome("done", self._iteration)
            except Lost as lost:
                if self._config.run.on_death == "end":
                    raise
                self._recover(lost)

    def _iterate(self) -> None:
        """Iterations from the present one to the end of the job."""
        last = self._config.job.iterations - 1
        while self._iteration <= last:
            acks = self._collect(Ack, self._config.run.step_deadline_s, f"to acknowledge iteration {self._iteration}")
            for rank, ack in acks.items():
                self._ledger.acknowledge(rank, ack.generation, ack.iteration)
            border = self._seal(acks, stop=self._iteration == last)
            report = _report(self._iteration, self._layout, acks)
            self._iteration += 1
            self._director.observe(report)
            self._hold(border)

    def _seal(self, acks: dict[int, Ack], *, stop: bool) -> Border:
        """Seal the iteration and tell every rank, with the border that follows."""
        if not all(ack.finite for ack in acks.values()):
            self._ledger.seal(self._iteration, "ABORT")
            raise JobDied(f"iteration {self._iteration} has a gradient that is not finite; lower optim.lr or set optim.clip_norm")
        border = self._director.border(self._iteration)
        every = self._config.run.verify_every
        digest = bool(every) and (self._iteration % every == every - 1 or stop)
        border = Border(None if stop else border.layout, border.bench, digest, stop)
        commit = self._ledger.seal(self._iteration, "COMMIT") == "COMMIT"
        self._broadcast(Seal(self._ledger.generation, self._iteration, commit, border))
        return border

    def _hold(self, border: Border) -> None:
        """Keep the ranks at the border until what it asks for is done, then let them go."""
        deadline_s = self._config.run.step_deadline_s
        if border.digest:
            self._compare_digests()
        if border.bench:
            done = self._collect(BenchDone, deadline_s, "to finish its benchmark", of=border.bench, partial=True)
            results = tuple(done[r].result for r in sorted(done))
            self._director.benched(results, tuple(sorted(set(border.bench) - set(done))))
        if border.layout is not None:
            self._switch(border.layout)
        elif (border.bench or border.digest) and not border.stop:
            self._broadcast(Go())

    def _switch(self, layout: Layout) -> None:
        """Once every rank is ready for it, the layout is in force."""
        self._generation = max(self._generation, layout.generation)
        self._collect(Ready, self._config.run.step_deadline_s, f"to get ready for generation {layout.generation}", generation=layout.generation)
        self._ledger.advance(layout.generation, layout.members)
        self._layout = layout
        self._broadcast(Go())

    def _recover(self, lost: Lost) -> None:
        """Go on without the lost ranks, under the layout that the director names; more may be lost on the way."""
        begin = time.monotonic()
        gone: set[int] = set()
        for _ in range(len(self._ranks) + MORE_ATTEMPTS):
            gone |= lost.ranks
            for rank in lost.ranks:
                launch.end_ranks([self._ranks.pop(rank)], patience_s=0.0)
            self._ledger.seal(self._iteration, "ABORT")
            layout = self._director.lost(tuple(sorted(gone)), self._layout, self._iteration, lost.words) if self._ranks else None
            if layout is None:
                raise lost
            self._generation += 1
            layout = msgspec.structs.replace(layout, generation=self._generation)
            self._broadcast(Resume(layout, tuple(sorted(gone)), self._iteration))
            try:
                self._switch(layout)
            except Lost as more:
                lost = more
                continue
            self._director.resumed(layout, self._iteration, time.monotonic() - begin)
            return
        raise lost

    def _compare_digests(self) -> None:
        got = self._collect(Digests, self._config.run.step_deadline_s, "to hash its state")
        seen: dict[str, tuple[int, str]] = {}
        for rank in sorted(got):
            for name, digest in got[rank].digests.items():
                owner, first = seen.setdefault(name, (rank, digest))
                if digest != first:
                    raise JobDied(
                        f"ranks {owner} and {rank} hold different bits of {name} after iteration {self._iteration - 1}: the training has split"
                    )

    def _collect(
        self, kind: type[M], deadline_s: float, what: str, *, of: Collection[int] | None = None, generation: int | None = None, partial: bool = False
    ) -> dict[int, M]:
        """One message of `kind` from each rank, or each of `of`. The deadline runs from the last sign of progress of any rank.

        With a `generation` only what ranks say of that one counts: all else was said before they heard of it.
        """
        ranks = set(self._ranks) if of is None else set(of)
        got: dict[int, M] = {}
        broken: dict[int, str] = {}  # they have lost a peer, which is either dead, and the poll will say so, or the one that stays silent
        begin = time.monotonic()
        while waiting := ranks - set(got):
            for message in self._poll(waiting):
                if isinstance(message, Broken):
                    if generation is None or message.generation >= generation:
                        broken[message.rank] = message.reason
                    continue
                if generation is not None and getattr(message, "generation", -1) != generation:
                    continue
                if not isinstance(message, kind):
                    raise JobDied(f"rank {message.rank} sent {type(message).__name__} while it had {what}")
                got[message.rank] = message
            last_sign = max([begin] + [self._progress[r * PROGRESS_FIELDS + 2] * 1e-9 for r in self._ranks])
            if time.monotonic() - last_sign > deadline_s:
                if partial:
                    return got
                raise self._who_hangs(waiting - broken.keys(), deadline_s, what)
            if waiting <= broken.keys() and time.monotonic() - begin > GRACE_S:
                raise Lost((), f"ranks {sorted(broken)} lost a connection, and none is dead: {next(iter(broken.values()))}")
        return got

    def _poll(self, waiting: set[int]) -> list[FromRank]:
        """Messages of the ranks waited for that are there, or arrive within a moment. Raises Lost when a rank is dead or failed."""
        if self._should_stop():
            raise _Interrupted
        by_conn = {self._ranks[r].conn: r for r in waiting}
        alive = [r.process.sentinel for r in self._ranks.values() if r.process.exitcode is None]
        messages = []
        for conn in wait([*by_conn, *alive], timeout=POLL_S):
            if not isinstance(conn, Connection):
                continue
            try:
                message = receive_from_rank(conn)
            except (EOFError, ConnectionResetError):
                raise self._who_died(by_conn[conn], "") from None
            if isinstance(message, Failed):
                raise self._who_died(message.rank, message.reason)
            messages.append(message)
        dead = [r.rank for r in self._ranks.values() if r.process.exitcode]
        if dead and not messages:
            raise self._who_died(dead[0], "")
        return messages

    def _who_died(self, reporter: int, reason: str) -> Lost:
        """The processes that were killed; the reporter itself only if none was. Peers of a dead rank fail within milliseconds of it."""
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            killed = [r for r in self._ranks.values() if r.process.exitcode is not None and r.process.exitcode < 0]
            if killed:
                words = " and ".join(f"{self._name(r.rank)} {r.how_it_ended()}" for r in killed)
                return Lost([r.rank for r in killed], f"{words} in iteration {self._iteration}")
            time.sleep(0.01)
        r = self._ranks[reporter]
        return Lost([reporter], f"{self._name(reporter)} failed in iteration {self._iteration}: {reason or r.how_it_ended()}")

    def _who_hangs(self, silent: set[int], deadline_s: float, what: str) -> Lost:
        """The absent rank, not its waiters: the one whose own progress is least."""
        if not silent:
            return Lost((), f"no rank got on for {deadline_s:g} s; each had {what}")
        stuck = min(silent, key=lambda r: tuple(self._progress[r * PROGRESS_FIELDS : r * PROGRESS_FIELDS + PROGRESS_FIELDS]))
        return Lost([stuck], f"{self._name(stuck)} made no progress for {deadline_s:g} s; it had {what}")

    def _name(self, rank: int) -> str:
        place = self._places.get(rank)
        return f"rank {rank} (host {place.host}, pid {self._ranks[rank].pid})" if place else f"rank {rank}"

    def _broadcast(self, message: ToRank) -> None:
        for r in self._ranks.values():
            try:
                send(r.conn, message)
            except (BrokenPipeError, ConnectionResetError):
                continue  # the next poll finds it dead and says so


class _Interrupted(Exception):
    """The caller asked the job to stop."""


def _report(iteration: int, layout: Layout, acks: dict[int, Ack]) -> StepReport:
    """What the working ranks did; a standby only waited."""
    working = [acks[rank] for rank in layout.ranks]
    first = working[0]
    events = np.concatenate([np.frombuffer(ack.events, dtype=EVENT) for ack in working])
    usage = np.concatenate([np.frombuffer(ack.usage, dtype="<i8").reshape(-1, 2) for ack in working])
    windows = {ack.rank: (ack.start_ns, ack.end_ns) for ack in working}
    return StepReport(iteration, layout, first.loss, first.grad_norm, first.lr, events, windows, usage)
