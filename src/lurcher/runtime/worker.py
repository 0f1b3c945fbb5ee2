"""One rank's process: compute, acknowledge, wait for the sealed decision, step, cross the border; again.

It decides nothing. Whatever changes between two iterations is in the Border that the commit names.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, MutableSequence, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection

import msgspec
import numpy as np
import torch
from torch.distributed import TCPStore

from lurcher.clock import SystemClock
from lurcher.errors import EXIT_JOB_DIED, DeadlineExpired, JobDied, LurcherError
from lurcher.faults import Fault, factor_at
from lurcher.layout import Layout
from lurcher.model.pace import NoPace, Pace
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.engine import Engine
from lurcher.runtime.messages import (
    Ack,
    BenchDone,
    Border,
    Broken,
    Digests,
    Failed,
    Go,
    Ready,
    Resume,
    Seal,
    Spec,
    Stop,
    ToRank,
    receive_from_supervisor,
    send,
)
from lurcher.runtime.run_delay import RunDelay
from lurcher.validate.bench_gemm import bench_gemm

PROGRESS_FIELDS = 3
"""Per rank in the shared progress array: iteration, chunks begun in it, monotonic ns of the last sign of progress."""


CONNECT_S = 5.0
"""Longest wait for a rank to connect when the layout changes: all come within milliseconds, unless one dies."""
PEER_LOST = (ConnectionError, RuntimeError, DeadlineExpired)
"""What a call raises whose peer is gone, over a socket or over gloo."""


class Stopped(Exception):
    """The supervisor asked this rank to end."""


class Resumed(Exception):
    """The supervisor asked this rank to go on under another layout."""

    def __init__(self, order: Resume) -> None:
        super().__init__()
        self.order = order


def rank_main(spec_bytes: bytes, conn: Connection, progress: MutableSequence[int]) -> None:
    """Entry of a rank's process. Ends with exit code 0, or 4 after telling the supervisor why."""
    _detach_from_terminal()
    spec = msgspec.msgpack.decode(spec_bytes, type=Spec)
    loop = None
    try:
        loop = RankLoop(spec, conn, progress)
        loop.run()
    except (Stopped, EOFError, BrokenPipeError):
        pass
    except (LurcherError, RuntimeError, ValueError, OSError) as error:
        _report_failure(conn, spec.rank, loop.iteration if loop else -1, error)
        os._exit(EXIT_JOB_DIED)
    # Not through interpreter shutdown: a peer that is already gone would make the groups' destructors wait for it.
    sys.stderr.flush()
    os._exit(0)


class RankLoop:
    """The rank's state between messages."""

    def __init__(self, spec: Spec, conn: Connection, progress: MutableSequence[int]) -> None:
        config = spec.config
        self._conn = conn
        self._rank = spec.rank
        self._config = config
        self._layout = spec.layout
        self._progress = _progress_writer(progress, spec.rank, config.fault)
        self._recorder = Recorder(spec.rank)
        self._emulated = config.pace.kind == "emulated"
        self._device: Pace | NoPace = (
            Pace(config.pace, spec.rank, config.job.seed, config.fault, SystemClock(), RunDelay()) if self._emulated else NoPace()
        )
        # Longer than the supervisor's patience: it sees all ranks and names the one that hangs, a waiter only sees its neighbour.
        self._patience_s = 2.0 * config.run.step_deadline_s + 5.0
        # Shorter than it: who connects to a rank that has just died must be back before it is taken for hanging itself.
        connect_s = min(CONNECT_S, 0.4 * config.run.step_deadline_s)
        store = TCPStore(spec.store_host, spec.store_port, is_master=False, timeout=timedelta(seconds=config.run.start_deadline_s))
        self._engine = Engine(config, spec.layout, spec.rank, store, self._recorder, self._device, self._progress, self._patience_s, connect_s)
        self._aim = spec.layout.generation
        self.iteration = 0

    def run(self) -> None:
        """All iterations, from the first Go to the last seal; where a peer is lost, on under the layout that the supervisor then names."""
        # What start-up left behind is never garbage; and what comes is collected between iterations, while this rank waits anyway.
        gc.collect()
        gc.freeze()
        gc.disable()
        act: Callable[[], None] = self._begin
        while True:
            try:
                act()
                self._iterate()
                return
            except Resumed as resumed:
                order = resumed.order
            except PEER_LOST as error:
                if self._config.run.on_death == "end":
                    raise
                order = self._report_broken(str(error))
            act = partial(self._resume, order)

    def _begin(self) -> None:
        self._send_ready(self._layout, 2.0 * self._config.run.start_deadline_s)

    def _iterate(self) -> None:
        """Iterations from the present one to the end of the job."""
        window_ns = time.monotonic_ns()
        while True:
            result = self._engine.compute(self.iteration)
            end_ns = time.monotonic_ns()
            self._acknowledge(result.loss, result.grad_norm, result.finite, window_ns, end_ns)
            window_ns = end_ns
            if self._obey_seal():
                return

    def _resume(self, order: Resume) -> None:
        """Another layout, without the ranks that are lost; what was computed last does not count."""
        self._engine.abandon()
        self._change(order.layout, order.lost)
        self.iteration = order.iteration
        # What was done for the iteration that did not count is no part of the one that will.
        self._recorder.drain()
        self._device.drain_usage()

    def _change(self, layout: Layout, lost: Sequence[int] = ()) -> None:
        """Prepare, and switch once everybody has: whoever is lost before that finds all others where they were."""
        self._aim = layout.generation
        self._engine.prepare(layout, lost)
        self._send_ready(layout, self._patience_s)
        self._engine.switch()
        self._layout = layout

    def _report_broken(self, reason: str) -> Resume:
        """Let everything go, so that others notice too, and wait for the layout to go on with."""
        self._engine.abandon()
        gc.collect()  # what the failed call still refers to may keep sockets open
        send(self._conn, Broken(self._rank, self._aim, self.iteration, reason[:300]))
        try:
            self._receive(self._patience_s, "a layout without the rank that is lost")
        except Resumed as resumed:
            return resumed.order
        raise LurcherError(f"rank {self._rank} has lost a peer and expected a layout")

    def _acknowledge(self, loss: float, grad_norm: float, finite: bool, start_ns: int, end_ns: int) -> None:
        usage = np.array(self._device.drain_usage(), dtype="<i8")
        lr = self._engine.learning_rate(self.iteration)
        events = self._recorder.drain().tobytes()
        generation = self._layout.generation
        send(self._conn, Ack(self._rank, generation, self.iteration, loss, grad_norm, lr, finite, start_ns, end_ns, events, usage.tobytes()))

    def _obey_seal(self) -> bool:
        """Wait for the decision, step or discard, cross the border; True at the end of the job."""
        start_ns = time.monotonic_ns()
        gc.collect()
        seal = self._receive(self._patience_s, "the sealed decision")
        self._recorder.record(Op.COMMIT_WAIT, 0, self.iteration, -1, 0, 0, start_ns, time.monotonic_ns())
        if not isinstance(seal, Seal) or (seal.generation, seal.iteration) != (self._layout.generation, self.iteration):
            raise LurcherError(f"rank {self._rank} expected the seal of iteration {self.iteration}, got {type(seal).__name__}")
        if seal.commit:
            self._engine.step(self.iteration)
        else:
            self._engine.discard()
        self._cross(seal.border)
        self.iteration += 1
        return seal.border.stop

    def _cross(self, border: Border) -> None:
        """Whatever the commit names between this iteration and the next; recorded as a pause, outside every iteration."""
        if border.layout is None and not border.bench and not border.digest:
            return
        start_ns = time.monotonic_ns()
        if border.digest:
            send(self._conn, Digests(self._rank, self.iteration, self._engine.digests()))
        if self._rank in border.bench:
            send(self._conn, BenchDone(self._rank, bench_gemm(self._rank, self._device, emulated=self._emulated)))
        if border.layout is not None:
            self._change(border.layout)
        elif not border.stop:
            self._expect_go(self._patience_s)
        self._recorder.record(Op.PAUSE, -1, self.iteration, -1, 0, 0, start_ns, time.monotonic_ns())

    def _send_ready(self, layout: Layout, deadline_s: float) -> None:
        """All is there for that layout; wait until it is for everybody."""
        send(self._conn, Ready(self._rank, os.getpid(), layout.generation))
        self._expect_go(deadline_s)

    def _expect_go(self, deadline_s: float) -> None:
        message = self._receive(deadline_s, "the word to go on")
        if not isinstance(message, Go):
            raise LurcherError(f"rank {self._rank} expected to go on, got {type(message).__name__}")

    def _receive(self, deadline_s: float, what: str) -> ToRank:
        if not self._conn.poll(deadline_s):
            raise JobDied(f"rank {self._rank} waited {deadline_s:g} s for {what}")
        message = receive_from_supervisor(self._conn)
        if isinstance(message, Resume):
            raise Resumed(message)
        if isinstance(message, Stop):
            raise Stopped
        return message


def _progress_writer(progress: MutableSequence[int], rank: int, faults: Sequence[Fault]) -> Callable[[int, int], None]:
    """The heartbeat: the main thread itself writes how far it is, so that a thread can never look alive for it.

    Faults that stop or hang the process strike here, where a real one may: at a chunk or before a collective.
    """
    mine = tuple(f for f in faults if f.kind in ("stop", "hang") and f.where.kind == "rank" and rank in f.where.ranks)
    origin_ns = time.monotonic_ns()
    base = rank * PROGRESS_FIELDS

    def write(iteration: int, chunk: int) -> None:
        now_ns = time.monotonic_ns()
        progress[base] = iteration
        progress[base + 1] = chunk
        progress[base + 2] = now_ns
        for fault in mine:
            if factor_at(fault, iteration, (now_ns - origin_ns) * 1e-9) != 1.0:
                os.kill(os.getpid(), signal.SIGKILL if fault.kind == "stop" else signal.SIGSTOP)

    return write


def _detach_from_terminal() -> None:
    """Ctrl-C is the supervisor's business; stdout is the report's; and if the forkserver dies, so does the rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _report_failure(conn: Connection, rank: int, iteration: int, error: Exception) -> None:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    try:
        send(conn, Failed(rank, iteration, reason))
    except OSError:
        pass  # the supervisor is gone as well; the exit code is all that is left to say
