"""Processes of a job: a warm forkserver, one process and one pipe per rank, a store on loopback. No thread, no fixed port."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, MutableSequence, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

import msgspec

from lurcher.runtime.messages import Spec

LOOPBACK = "127.0.0.1"


class RankProcess:
    """One rank as its supervisor sees it. `is_closed`: its pipe has ended; `is_over`: its end is known and was dealt with."""

    def __init__(self, rank: int, process: ForkServerProcess, conn: Connection) -> None:
        self.rank = rank
        self.process = process
        self.conn = conn
        self.started_s = time.monotonic()
        self.is_closed = False
        self.is_over = False

    @property
    def pid(self) -> int:
        """Process id; known once started."""
        pid = self.process.pid
        assert pid is not None
        return pid

    def how_it_ended(self) -> str:
        """Words for the exit code."""
        code = self.process.exitcode
        if code is None:
            return "is still running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def warm_context() -> ForkServerContext:
    """A forkserver that has imported torch and the runtime. Starting it costs once what every rank would pay."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lurcher.runtime.preload"])
    return context


def warm_up() -> None:
    """Start the forkserver now, so that it imports while the caller still prepares."""
    warm_context()
    from multiprocessing import forkserver

    forkserver.ensure_running()


def loopback_socket() -> socket.socket:
    """A listening socket on a free port of the loopback interface: the store has no authentication, so nobody outside may reach it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK, 0))
    listener.listen(1024)
    return listener


def start_rank(spec: Spec, rank_main: Callable[..., None], progress: MutableSequence[int]) -> RankProcess:
    """Start the process of one rank; `progress` is the array that all ranks share with the supervisor."""
    context = warm_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=rank_main, args=(msgspec.msgpack.encode(spec), theirs, progress), name=f"lurcher-rank-{spec.rank}", daemon=True)
    process.start()
    theirs.close()
    return RankProcess(spec.rank, process, ours)


def fence(ranks: Sequence[RankProcess], lease_s: float) -> tuple[RankProcess, ...]:
    """Kill processes, reap them, and let all go that they took here. One that even that does not end is waited for until its lease is over: then it
    takes no step any more; these are returned, to be reaped another time."""
    for r in ranks:
        r.process.kill()
    deadline = time.monotonic() + lease_s
    for r in ranks:
        r.process.join(max(0.0, deadline - time.monotonic()))
        r.conn.close()
    left = tuple(r for r in ranks if r.process.exitcode is None)
    for r in ranks:
        if r not in left:
            r.process.close()
    return left


def end_ranks(ranks: Sequence[RankProcess], patience_s: float) -> None:
    """Wait at most `patience_s` for the ranks to end by themselves, then kill what is left, and reap all of them."""
    deadline = time.monotonic() + patience_s
    for r in ranks:
        r.process.join(max(0.0, deadline - time.monotonic()))
    for r in ranks:
        if r.process.exitcode is None:
            r.process.kill()
    for r in ranks:
        r.process.join(5.0)
        r.conn.close()
