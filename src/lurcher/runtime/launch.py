"""Processes of a job: a warm forkserver, one process and one pipe per rank, a store on loopback. No thread, no fixed port."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from collections.abc import MutableSequence, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import msgspec

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.runtime.messages import Spec

LOOPBACK = "127.0.0.1"


class RankProcess:
    """One rank as its supervisor sees it."""

    def __init__(self, rank: int, process: ForkServerProcess, conn: Connection) -> None:
        self.rank = rank
        self.process = process
        self.conn = conn

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


def start_ranks(
    config: JobConfig, layout: Layout, port: int, rank_main: Any, num_progress_fields: int
) -> tuple[list[RankProcess], MutableSequence[int]]:
    """Start one process per rank; returns them with the shared progress array (`num_progress_fields` int64 per rank)."""
    context = warm_context()
    progress: MutableSequence[int] = context.RawArray("q", (max(layout.members) + 1) * num_progress_fields)
    started: list[RankProcess] = []
    try:
        for rank in layout.members:
            ours, theirs = context.Pipe()
            spec = msgspec.msgpack.encode(Spec(rank, config, layout, LOOPBACK, port))
            process = context.Process(target=rank_main, args=(spec, theirs, progress), name=f"lurcher-rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            started.append(RankProcess(rank, process, ours))
    except BaseException:
        end_ranks(started, patience_s=0.0)
        raise
    return started, progress


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
