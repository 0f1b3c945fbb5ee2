"""Several jobs run by one set of spawned processes, because starting eight torch processes costs more than the jobs themselves."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from reference import Trained, train
from torch.distributed import TCPStore

from lurcher.config import JobConfig
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.probe.recorder import Recorder
from lurcher.runtime.backend import Backend
from lurcher.runtime.engine import Engine
from lurcher.runtime.instruments import NullDevice

LOOPBACK = "127.0.0.1"
GROUP_TIMEOUT_S = 30.0
DEADLINE_S = 150.0
"""For all jobs together, starting included."""


class Job(NamedTuple):
    """`iterations` of training; `splits` and `layouts` are pairs of an iteration and what is adopted before it. Each rank has its own copy of `backend`."""

    name: str
    config: JobConfig
    layout: Layout
    iterations: int = 10
    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    layouts: tuple[tuple[int, Layout], ...] = ()
    backend: Backend | None = None

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Working and standby ranks."""
        return tuple(sorted((*self.layout.ranks, *self.layout.standby)))

    def layout_at(self, iteration: int, present: Layout) -> Layout:
        """The layout of an iteration, given the one before it."""
        layout = dict(self.layouts).get(iteration)
        if layout is not None:
            return msgspec.structs.replace(layout, generation=present.generation + 1)
        split = dict(self.splits).get(iteration)
        return present if split is None else present.with_split(split)


class RankResult(NamedTuple):
    """What one rank ends with: `state` as in Engine.state, gradients of the last iteration; the rest is per iteration."""

    state: dict[str, np.ndarray]
    digests: dict[str, str]
    losses: list[float]
    norms: list[float]
    rates: list[float]
    events: list[np.ndarray]
    generations: list[int]
    num_beats: int
    received_bytes: list[int]
    plans: list[str]


def run_jobs(jobs: list[Any], run: Callable[[Any, int, TCPStore], Any] | None = None) -> dict[str, dict[int, Any]]:
    """Results by job and rank, of `run` or run_rank. Every wait has a deadline; nothing is left running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "lurcher.runtime.engine"])
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    # Generations keep the jobs apart in the one store.
    jobs = [job._replace(layout=msgspec.structs.replace(job.layout, generation=100 * number)) for number, job in enumerate(jobs)]
    world_size = max(max(job.all_ranks) for job in jobs) + 1
    deadline = time.monotonic() + DEADLINE_S
    processes, pipes = [], []
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store.port, jobs, theirs, run or run_rank), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        results: dict[str, dict[int, Any]] = {job.name: {} for job in jobs}
        for job in jobs:
            for rank in job.all_ranks:
                results[job.name][rank] = _receive(pipes[rank], deadline, f"job {job.name} on rank {rank}")
        return results
    finally:
        for process in processes:
            process.join(5.0 if time.monotonic() < deadline else 0.0)
            if process.exitcode is None:
                process.kill()
            process.join(5.0)


def _receive(pipe: Connection, deadline: float, what: str) -> Any:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"{what}: no result within {DEADLINE_S:g} s")
    result = pipe.recv()
    if isinstance(result, str):
        raise RuntimeError(f"{what} failed:\n{result}")
    return result


def _serve(rank: int, port: int, jobs: list[Any], pipe: Connection, run: Callable[[Any, int, TCPStore], Any]) -> None:
    torch.set_num_threads(1)
    store = TCPStore(LOOPBACK, port, is_master=False)
    for job in jobs:
        if rank not in job.all_ranks:
            continue
        try:
            pipe.send(run(job, rank, store))
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AssertionError, LurcherError):
            pipe.send(traceback.format_exc())
            return


def run_rank(job: Job, rank: int, store: TCPStore | None) -> RankResult:
    """One rank's part of a job."""
    recorder = Recorder(rank)
    beats: list[tuple[int, int]] = []
    engine = Engine(
        job.config, job.layout, rank, store, recorder, NullDevice(), lambda *beat: beats.append(beat), GROUP_TIMEOUT_S, backend=job.backend
    )
    grads: dict[str, torch.Tensor] = {}
    losses, norms, rates, events, generations, received_bytes, plans = [], [], [], [], [], [], []
    for iteration in range(job.iterations):
        layout = job.layout_at(iteration, engine.layout)
        if layout is not engine.layout:
            engine.adopt(layout)
            received_bytes.append(engine.received_bytes)
            plans.append(engine.plan)
        result = engine.compute(iteration)
        assert result.finite
        grads = {name: value for name, value in engine.state().items() if name.startswith("grad/")}
        losses.append(result.loss)
        norms.append(result.grad_norm)
        rates.append(engine.learning_rate(iteration))
        generations.append(engine.layout.generation)
        engine.step(iteration)
        events.append(recorder.drain())
    state = {name: value.numpy() for name, value in (engine.state() | grads).items()}
    digests = engine.digests()
    engine.close()
    return RankResult(state, digests, losses, norms, rates, events, generations, len(beats), received_bytes, plans)


def references_of(jobs: list[Job]) -> dict[bytes, Trained]:
    """What one process in plain torch makes of the jobs, by `key_of`: layouts change nothing, so jobs that differ in them only share one."""
    torch.set_num_threads(1)
    return {key: train(job.config, job.iterations) for key, job in {key_of(job): job for job in jobs}.items()}


def key_of(job: Job) -> bytes:
    """All of a job that decides what is trained."""
    return msgspec.json.encode((job.config.model, job.config.job, job.iterations))
