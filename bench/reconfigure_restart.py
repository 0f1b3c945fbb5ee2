"""The other way to change a layout: save, end all processes, start new ones, load. Real ranks with the engine's own state, for bench/reconfigure.py."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.probe.recorder import Recorder
from lurcher.runtime import launch
from lurcher.runtime.engine import Engine
from lurcher.runtime.instruments import NullDevice
from lurcher.runtime.owners import Slice, cut_slices, slices_of
from lurcher.runtime.shapes import held_tensors
from lurcher.runtime.storage import Storage
from lurcher.runtime.transfer import STATES

PATIENCE_S = 120.0


class Restart(NamedTuple):
    """Seconds of each part of a restart."""

    save_s: float
    end_s: float
    start_s: float
    load_s: float

    @property
    def total_s(self) -> float:
        """From the order to stop until every rank could compute."""
        return sum(self)


def restart(config: JobConfig, before: Layout, after: Layout, folder: Path, *, cold: bool) -> Restart:
    """Run a job under `before`, save it, end it, start it under `after` and load. `cold`: the new processes import everything."""
    warm = launch.warm_context()
    old = _Ranks(warm, config, before, folder, loads=False)
    try:
        old.hear("ready")
        begin_s = time.monotonic()
        old.tell("save")
        old.hear("saved")
        saved_s = time.monotonic()
    finally:
        old.end()
    ended_s = time.monotonic()
    new = _Ranks(multiprocessing.get_context("spawn") if cold else warm, config, after, folder, loads=True)
    try:
        new.hear("ready")
        started_s = time.monotonic()
        new.tell("load")
        new.hear("loaded")
        loaded_s = time.monotonic()
    finally:
        new.end()
    return Restart(saved_s - begin_s, ended_s - saved_s, started_s - ended_s, loaded_s - started_s)


class _Ranks:
    """The processes of one life of the job."""

    def __init__(self, context: Any, config: JobConfig, layout: Layout, folder: Path, *, loads: bool) -> None:
        self._store = TCPStore(launch.LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self._conns: list[Connection] = []
        self._processes = []
        for rank in layout.ranks:
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(config, layout, rank, self._store.port, theirs, str(folder), loads), daemon=True)
            process.start()
            theirs.close()
            self._conns.append(ours)
            self._processes.append(process)

    def tell(self, word: str) -> None:
        for conn in self._conns:
            conn.send_bytes(word.encode())

    def hear(self, word: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        for conn in self._conns:
            if not conn.poll(max(0.0, deadline_s - time.monotonic())):
                raise TimeoutError(f"a rank was not {word} within {PATIENCE_S:g} s")
            heard = conn.recv_bytes().decode()
            if heard != word:
                raise RuntimeError(f"a rank said {heard} instead of {word}")

    def end(self) -> None:
        for conn in self._conns:
            conn.close()
        for process in self._processes:
            process.join(5.0)
            if process.exitcode is None:
                process.kill()
                process.join(5.0)


def _rank_main(config: JobConfig, layout: Layout, rank: int, port: int, conn: Connection, folder: str, loads: bool) -> None:
    torch.set_num_threads(1)
    store = TCPStore(launch.LOOPBACK, port, is_master=False)
    engine = Engine(config, layout, rank, store, Recorder(rank), NullDevice(), lambda iteration, chunk: None, PATIENCE_S)
    if not loads:
        engine.compute(0)
        engine.step(0)
    conn.send_bytes(b"ready")
    try:
        while True:
            if conn.recv_bytes() == b"save":
                _save(config, layout, rank, engine, Path(folder))
                conn.send_bytes(b"saved")
            else:
                _load(config, layout, rank, Path(folder))
                conn.send_bytes(b"loaded")
    except EOFError:
        os._exit(0)  # at once, as the live ranks end: a peer that is gone would make the groups' destructors wait for it


def _save(config: JobConfig, layout: Layout, rank: int, engine: Engine, folder: Path) -> None:
    """Each slice once, by its first owner."""
    mine = [piece for piece in cut_slices(config.model, layout) if piece.primary == rank]
    state = engine.state()
    torch.save(
        [(piece.tensor, piece.first, piece.end, *(state[f"{kind}/{piece.name}"] for kind in STATES)) for piece in mine], folder / f"rank-{rank}.pt"
    )


def _load(config: JobConfig, layout: Layout, rank: int, folder: Path) -> None:
    """What this rank holds under its layout, out of whatever the old ranks saved; fails if anything is missing."""
    slices = cut_slices(config.model, layout)
    storage = Storage(held_tensors(config.model, layout, rank), slices_of(slices, rank), torch.float32)
    saved: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("rank-*.pt")):
        for entry in torch.load(path, mmap=True, weights_only=True):
            saved.setdefault(entry[0], []).append(entry)
    lacking = 0
    for piece in slices_of(slices, rank):
        lacking += piece.end - piece.first
        for tensor, first, end, *values in saved.get(piece.tensor, ()):
            low, high = max(piece.first, first), min(piece.end, end)
            if low >= high:
                continue
            lacking -= high - low
            span = slice(*storage.span(Slice(tensor, low, high, piece.owners)))
            for kind, value in zip(STATES, values, strict=True):
                flat = getattr(storage, kind)[span]
                flat.copy_((value if value.shape[0] == high - low else value[low - first : high - first]).reshape(-1))
    if lacking:
        raise RuntimeError(f"rank {rank} lacks {lacking} atoms after loading")
