"""Composes a training job: configuration, run directory, coordinator, supervisor; and the verdict in the end."""

from __future__ import annotations

import os
import platform
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path

import msgspec

import lurcher
from lurcher.analyze.values import Verdict, Verification
from lurcher.clock import SystemClock
from lurcher.config import JobConfig, layout_of, settled
from lurcher.control.coordinator import Coordinator
from lurcher.control.diagnosis import diagnose, say_emulation
from lurcher.control.director import LiveDirector
from lurcher.control.policies import POLICIES
from lurcher.control.protocols import Snapshot, Watch
from lurcher.control.sameness import Step, judge_sameness
from lurcher.errors import EXIT_DIFFERS, EXIT_DONE, EXIT_INTERRUPTED, EXIT_JOB_DIED, JobDied
from lurcher.layout import Layout
from lurcher.localize.links import Nodes
from lurcher.records import Decision, Place
from lurcher.runlog import RunHeader, RunWriter
from lurcher.runtime import launch
from lurcher.runtime.data import Loader
from lurcher.runtime.reports import Outcome
from lurcher.runtime.shapes import check_model

DEFAULT_RUNS = "lurcher-runs"


class JobOutcome(msgspec.Struct, frozen=True):
    """What a job came to."""

    verdict: Verdict
    run_dir: Path
    exit_code: int
    message: str
    emulation: str = ""
    """How much real CPU the emulated device took, as a sentence; empty where nothing was emulated."""


def run_job(config: JobConfig, *, command: str, watch: Watch) -> JobOutcome:
    """Train to the end, to a death or to Ctrl-C; the run directory is complete in every case.

    Raises UserError before anything is started or written: impossible layout or model, missing corpus or NCCL, used run directory.
    """
    config = settled(config)
    layout = layout_of(config)
    check_model(config.model, layout)
    if config.run.backend == "nccl":
        from lurcher.runtime.backends import check_nccl  # imports torch, which nothing else needs so early

        check_nccl(layout.world_size)
    loader = Loader(config.job.corpus, config.job.seed, config.model.seq_len, layout.num_microbatches, bucketed=config.job.bucketed)
    path = Path(config.run.dir) if config.run.dir else _new_run_dir()
    places = _places(config, layout)
    with closing(RunWriter.create(path, _header(config, layout, places, command))) as run:
        return _train(config, layout, loader, places, run, watch)


def _train(config: JobConfig, layout: Layout, loader: Loader, places: tuple[Place, ...], run: RunWriter, watch: Watch) -> JobOutcome:
    begin = time.monotonic()
    emulated = config.pace.kind == "emulated"
    nodes = Nodes({rank: config.layout.node(rank) for rank in layout.members}) if config.layout.ranks_per_node else None
    coordinator = Coordinator(
        config.detect, config.plan, layout, config.layout.schedule, emulated=emulated, num_atoms=config.model.num_kv_heads, nodes=nodes
    )
    director = LiveDirector(config, layout, coordinator, loader.workload, run, watch, SystemClock(), POLICIES[config.plan.policy].plan)
    watch.update(_between(config, layout, f"starting {layout.world_size} ranks"))
    exit_code, message = EXIT_DONE, "done"
    verification: Verification | None = None
    with _stop_on_signal() as stopped:
        launch.warm_up()
        from lurcher.runtime.supervisor import Supervisor  # imports torch, while the forkserver does so too

        try:
            outcome = Supervisor(config, layout, places, director, stopped).run()
            if outcome.kind == "interrupted":
                exit_code, message = EXIT_INTERRUPTED, f"stopped after {outcome.iterations} iterations; the records are in {run.path}"
            elif config.run.verify:
                verification = _verify(config, layout, director, outcome, stopped, watch)
                if verification is None:
                    exit_code, message = EXIT_INTERRUPTED, f"the job is done; its verification was stopped. The records are in {run.path}"
                elif not verification.same:
                    exit_code, message = EXIT_DIFFERS, f"the training is not what it is without faults: {verification.reason}"
        except JobDied as error:
            exit_code, message = EXIT_JOB_DIED, f"{error}; the records are in {run.path}"
            run.decide(Decision(director.iterations[-1] if director.iterations else -1, time.monotonic() - begin, "fault", str(error)))
    run.log(message)
    died = message if exit_code == EXIT_JOB_DIED else ""
    verdict = diagnose(config, layout, coordinator, director, places, run.path, time.monotonic() - begin, died=died, verification=verification)
    run.verdict(verdict)
    emulation = say_emulation(director)
    if emulation:
        run.decide(Decision(director.iterations[-1], time.monotonic() - begin, "note", emulation))
    return JobOutcome(verdict, run.path, exit_code, message, emulation)


def _verify(
    config: JobConfig, layout: Layout, director: LiveDirector, outcome: Outcome, stopped: Callable[[], bool], watch: Watch
) -> Verification | None:
    """The same training once more without faults, and how far the job was from it; None where that was stopped."""
    from lurcher.runtime.fault_free import train_fault_free  # imports torch

    def tell(iteration: int, loss: float) -> None:
        watch.update(
            _between(config, layout, f"verifying: once more without faults, iteration {iteration + 1} of {config.job.iterations}", iteration, loss)
        )

    tell(0, float("nan"))
    expected = train_fault_free(config, stopped, tell)
    if expected is None:
        return None
    return judge_sameness(
        [director.steps[i] for i in sorted(director.steps)],
        outcome.sketch,
        list(map(Step, expected.losses, expected.norms)),
        expected.sketch,
        config.job.dtype,
    )


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """While inside, Ctrl-C and SIGTERM only set a flag that the supervisor asks for; a second one strikes at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_run_dir() -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path(DEFAULT_RUNS) / f"{stamp}-{os.getpid()}"


def _places(config: JobConfig, layout: Layout) -> tuple[Place, ...]:
    """Where the ranks run: all on this host, which stands for several nodes where the job says so."""
    host, per_node = socket.gethostname(), config.layout.ranks_per_node
    if not per_node:
        return tuple(Place(rank, host, rank, "cpu") for rank in layout.ranks)
    return tuple(Place(rank, f"{host}-node{config.layout.node(rank)}", rank % per_node, "cpu") for rank in layout.ranks)


def _header(config: JobConfig, layout: Layout, places: tuple[Place, ...], command: str) -> RunHeader:
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")}
    return RunHeader(
        lurcher_version=lurcher.__version__,
        versions={"python": platform.python_version(), **versions},
        job=msgspec.to_builtins(config),
        layout=layout,
        places=places,
        emulated=config.pace.kind == "emulated",
        injected=tuple(str(f) for f in config.fault),
        started_unix_s=time.time(),
        command=command,
    )


def _between(config: JobConfig, layout: Layout, phase: str, iteration: int = -1, loss: float = float("nan")) -> Snapshot:
    """What a live display shows while the job itself does not train."""
    return Snapshot(
        iteration=iteration,
        num_iterations=config.job.iterations,
        iterations_per_min=0.0,
        loss=loss,
        state="observe",
        reason="",
        split=layout.split,
        phase=phase,
    )
