"""One rank's process: carries out what the protocol's machine says, and tells it what came of it.

It decides nothing (`protocol/rank.py` says what follows on what). While nothing is under way it waits for a message of the supervisor, but
never longer than its lease.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import MutableSequence, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection

import msgspec
import numpy as np
from torch import set_num_threads
from torch.distributed import TCPStore

from lurcher.clock import SystemClock
from lurcher.errors import EXIT_JOB_DIED, DeadlineExpired, LurcherError
from lurcher.faults import Fault, factor_at
from lurcher.layout import Layout
from lurcher.model.link_pace import LinkPace
from lurcher.model.pace import NoPace, Pace
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.backend import Backend
from lurcher.runtime.backends import backend_named
from lurcher.runtime.engine import Engine
from lurcher.runtime.messages import Ack, BenchDone, Border, Digests, Failed, FromRank, Spec, receive_from_supervisor, send
from lurcher.runtime.protocol.lease import lease_s
from lurcher.runtime.protocol.rank import RankMachine
from lurcher.runtime.protocol.rank_values import (
    Abandon,
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
    SupervisorGone,
    Switch,
)
from lurcher.runtime.run_delay import RunDelay
from lurcher.runtime.wires import EmulatedWires, NoWires
from lurcher.validate.bench_gemm import bench_gemm

PROGRESS_FIELDS = 5
"""Per rank in the shared progress array: monotonic ns at which it was last seen to wait for another rank, generation, iteration, chunks begun in it
(-1: before it), monotonic ns of the last sign of progress."""
CONNECT_S = 5.0
"""Longest wait for a rank to connect when the layout changes: all come within milliseconds, unless one dies."""
PEER_LOST = (ConnectionError, RuntimeError, DeadlineExpired)
"""What a call raises whose peer is gone, over a socket or over gloo."""
MOST_WORDS = 300
"""Of a reason that goes to the supervisor, in characters."""


def rank_main(spec_bytes: bytes, conn: Connection, progress: MutableSequence[int], backend: Backend | None = None) -> None:
    """Entry of a rank's process. Ends with exit code 0, or 4 after telling the supervisor why. `backend` None: the one that the job names."""
    _detach_from_terminal()
    spec = msgspec.msgpack.decode(spec_bytes, type=Spec)
    loop = None
    try:
        loop = RankLoop(spec, conn, progress, backend or backend_named(spec.config.run.backend, spec.rank))
        end = loop.run()
    except (LurcherError, RuntimeError, ValueError, OSError) as error:
        _report_failure(conn, spec.rank, loop.iteration if loop else -1, error)
        os._exit(EXIT_JOB_DIED)
    # Not through interpreter shutdown: a peer that is already gone would make the groups' destructors wait for it.
    sys.stderr.flush()
    os._exit(EXIT_JOB_DIED if end.how == "failed" else 0)


class RankLoop:
    """Machine, engine and pipe of one rank."""

    def __init__(self, spec: Spec, conn: Connection, progress: MutableSequence[int], backend: Backend) -> None:
        config = spec.config
        recovers = config.run.on_death == "recover"
        self._spec, self._config, self._rank, self._conn = spec, config, spec.rank, conn
        self._machine = RankMachine(spec.rank, os.getpid(), spec.layout, spec.iteration, recovers=recovers, joins=spec.joins)
        self._progress = ProgressWriter(progress, spec.rank, config.fault)
        self._recorder = Recorder(spec.rank)
        self._emulated = config.pace.kind == "emulated"
        self._device: Pace | NoPace = (
            Pace(config.pace, spec.rank, config.job.seed, config.fault, SystemClock(), RunDelay()) if self._emulated else NoPace()
        )
        links = LinkPace(config.pace, config.layout, config.fault)
        self._wires = EmulatedWires(links, SystemClock()) if config.pace.has_links else NoWires()
        self._backend = backend
        self._lease_s = lease_s(config.run.step_deadline_s)
        self._engine: Engine | None = None
        self._moved_bytes = 0  # that came for the layout of the next iteration
        self._copy_s = 0.0  # that the copy before the next iteration took
        self._window_ns = 0  # when the last acknowledgement was given
        self._border_ns: int | None = None  # when the border began that the rank is at

    @property
    def iteration(self) -> int:
        """The one that is computed, or the next."""
        return self._machine.iteration

    def run(self) -> End:
        """From the first word to the last; says how it ended."""
        # What start-up left behind is never garbage; and what comes is collected between iterations, while this rank waits anyway.
        gc.collect()
        gc.freeze()
        gc.disable()
        effects = self._machine.begin()
        while True:
            event: RankEvent | None = None
            for effect in effects:
                if isinstance(effect, End):
                    return effect
                event = self._do(effect)
            effects = self._machine.on(event or self._hear())

    def _do(self, effect: RankEffect) -> RankEvent | None:
        """Carry out one effect; if it is an act, how that ended."""
        match effect:
            case Send(message):
                self._send(message)
            case Step(iteration):
                self._built.step(iteration)
                self._border_ns = time.monotonic_ns()
            case Switch():
                self._built.switch()
            case Abandon():
                self._built.abandon()
                gc.collect()  # what a failed call still refers to may keep sockets open
            case Discard():
                self._discard()
            case _:
                return self._act(effect)
        return None

    def _act(self, act: RankEffect) -> RankEvent:
        """Do what takes a while. Where a peer is lost, that is what came of it."""
        if isinstance(act, Build | Prepare):
            self._progress.enter(self._machine.target.generation, self.iteration)
        try:
            match act:
                case Build(layout, iteration):
                    self._build(layout, iteration)
                case Compute(generation, iteration):
                    return Done(self._compute(generation, iteration))
                case KeepCopy(iteration, holders):
                    begin_ns = time.monotonic_ns()
                    self._built.keep_copy(iteration, dict(holders))
                    self._copy_s = (time.monotonic_ns() - begin_ns) * 1e-9
                case Digest(generation, iteration):
                    return Done(self._digest(generation, iteration))
                case Bench(generation, iteration, alone, rounds):
                    found = (bench_gemm(self._rank, self._device, emulated=self._emulated),) if alone else ()
                    return Done(BenchDone(self._rank, generation, iteration, (*found, *self._built.bench_links(iteration, rounds))))
                case Prepare(layout, lost, cut):
                    self._built.prepare(layout, lost, cut)
                    self._moved_bytes = self._built.received_bytes
                    return Done(plan=self._built.plan)
        except PEER_LOST as error:
            return PeerLost(_words(error))
        return Done()

    # --- acts ---------------------------------------------------------------------------------------------------------------------

    @property
    def _built(self) -> Engine:
        assert self._engine is not None  # the machine builds before anything else
        return self._engine

    def _build(self, layout: Layout, iteration: int) -> None:
        if self._engine is not None:
            self._engine.close()
        config, start_s = self._config, self._config.run.start_deadline_s
        # Shorter than the supervisor's patience: who connects to a rank that has just died must be back before it is taken for hanging itself.
        connect_s = min(CONNECT_S, 0.4 * config.run.step_deadline_s)
        store = TCPStore(self._spec.store_host, self._spec.store_port, is_master=False, timeout=timedelta(seconds=start_s))
        self._engine = Engine(
            config,
            layout,
            self._rank,
            store,
            self._recorder,
            self._device,
            self._progress,
            self._lease_s,
            connect_s,
            backend=self._backend,
            interrupted=self._is_interrupted,
            num_steps=iteration,
            wires=self._wires,
        )

    def _compute(self, generation: int, iteration: int) -> Ack:
        if self._border_ns is not None and self._machine.border != Border():
            self._recorder.record(Op.PAUSE, -1, iteration - 1, -1, 0, 0, self._border_ns, time.monotonic_ns())
        self._border_ns = None
        result = self._built.compute(iteration)
        begin_ns, self._window_ns = self._window_ns, time.monotonic_ns()
        usage = np.array(self._device.drain_usage(), dtype="<i8").tobytes()
        lr, events = self._built.learning_rate(iteration), self._recorder.drain().tobytes()
        figures = result.loss, result.grad_norm, lr, result.finite
        before, self._moved_bytes, self._copy_s = (self._moved_bytes, self._copy_s), 0, 0.0
        return Ack(self._rank, generation, iteration, *figures, begin_ns, self._window_ns, events, usage, *before, self._built.copy_bytes)

    def _digest(self, generation: int, iteration: int) -> Digests:
        is_last = iteration == self._config.job.iterations - 1
        sketch = self._built.sketch() if is_last and self._config.run.verify else {}
        return Digests(self._rank, generation, iteration, self._built.digests(), sketch)

    def _is_interrupted(self) -> bool:
        """Whether the supervisor has something to say. Asked again and again by whoever waits for another rank, so that it is seen to."""
        self._progress.waits()
        return self._conn.poll(0)

    def _discard(self) -> None:
        """What was done for an iteration that does not count is no part of the one that will."""
        self._built.discard()
        self._recorder.drain()
        self._device.drain_usage()
        self._window_ns, self._border_ns = time.monotonic_ns(), None

    # --- the pipe -----------------------------------------------------------------------------------------------------------------

    def _hear(self) -> RankEvent:
        """The supervisor's next message, if it comes before the lease is over; a process that was stopped meanwhile finds that it is."""
        begin_ns = time.monotonic_ns()
        is_first = not self._machine.has_begun  # then others may still be starting, or a border is far
        limit_s = 2.0 * self._config.run.start_deadline_s if is_first else self._lease_s
        if self._machine.phase == "waits for the seal":
            gc.collect()
        has_come = self._conn.poll(limit_s)
        waited_s = (time.monotonic_ns() - begin_ns) * 1e-9
        if not has_come or waited_s > limit_s:
            return LeaseOver(limit_s)
        if self._machine.phase == "waits for the seal":
            self._recorder.record(Op.COMMIT_WAIT, 0, self.iteration, -1, 0, 0, begin_ns, time.monotonic_ns())
        try:
            return Heard(receive_from_supervisor(self._conn))
        except (EOFError, ConnectionResetError):
            return SupervisorGone()

    def _send(self, message: FromRank) -> None:
        try:
            send(self._conn, message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the supervisor is gone; so the pipe says when it is asked for the next message


class ProgressWriter:
    """The heartbeat: the main thread itself writes how far it is, so that a thread can never look alive for it.

    Faults that stop or hang the process strike here, where a real one may: at a chunk or before a collective.
    """

    def __init__(self, progress: MutableSequence[int], rank: int, faults: Sequence[Fault]) -> None:
        self._progress, self._base = progress, rank * PROGRESS_FIELDS
        self._mine = tuple(f for f in faults if f.kind in ("stop", "hang") and f.where.kind == "rank" and rank in f.where.ranks)
        self._origin_ns = time.monotonic_ns()
        self._generation = 0

    def enter(self, generation: int, iteration: int) -> None:
        """What comes before the iteration's first chunk, such as a change of layout, begins; from now on under that generation."""
        self._generation = generation
        self._write(iteration, -1)

    def waits(self) -> None:
        """It waits for another rank, and is well: no progress, but no hang either."""
        self._progress[self._base] = time.monotonic_ns()

    def __call__(self, iteration: int, chunk: int) -> None:
        """So many chunks of the iteration have begun."""
        now_ns = self._write(iteration, chunk)
        for fault in self._mine:
            if factor_at(fault, iteration, (now_ns - self._origin_ns) * 1e-9) != 1.0:
                os.kill(os.getpid(), signal.SIGKILL if fault.kind == "stop" else signal.SIGSTOP)

    def _write(self, iteration: int, chunk: int) -> int:
        now_ns = time.monotonic_ns()
        self._progress[self._base + 1 : self._base + PROGRESS_FIELDS] = [self._generation, iteration, chunk, now_ns]
        return now_ns


def _detach_from_terminal() -> None:
    """Ctrl-C is the supervisor's business; stdout is the report's; and if the forkserver dies, so does the rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(2, 1)
    set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _report_failure(conn: Connection, rank: int, iteration: int, error: Exception) -> None:
    try:
        send(conn, Failed(rank, iteration, _words(error)))
    except OSError:
        pass  # the supervisor is gone as well; the exit code is all that is left to say


def _words(error: Exception) -> str:
    """One line for an error."""
    return " ".join(str(error).split())[:MOST_WORDS] or type(error).__name__
