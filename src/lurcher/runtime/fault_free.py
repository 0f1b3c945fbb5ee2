"""The same training by one process: no other rank, no fault, no emulated pace. What a job that went through much is held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.model.pace import NoPace
from lurcher.probe.recorder import Recorder
from lurcher.runtime.engine import Engine
from lurcher.runtime.sketch import Sketch

TELL_EVERY_S = 5.0
UNUSED_S = 1.0
"""A deadline of waits that one rank never has."""


class Trained(NamedTuple):
    """Loss and gradient norm of every iteration, and the state after the last one."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    sketch: Sketch


def train_fault_free(config: JobConfig, should_stop: Callable[[], bool], tell: Callable[[int, float], None]) -> Trained | None:
    """Train to the last iteration; None where it was to stop. `tell(iteration, loss)` now and then."""
    layout = Layout.uniform(tp=1, pp=1, dp=1, num_layers=config.model.num_layers, num_microbatches=config.layout.num_microbatches)
    recorder = Recorder(0)
    engine = Engine(config, layout, 0, None, recorder, NoPace(), lambda iteration, chunk: None, UNUSED_S)
    losses, norms, told_s = [], [], time.monotonic()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have: threads that wait for each other in small sums take many times as long on a busy machine
    try:
        for iteration in range(config.job.iterations):
            if should_stop():
                return None
            result = engine.compute(iteration)
            engine.step(iteration)
            recorder.drain()  # nobody reads what it did
            losses.append(result.loss)
            norms.append(result.grad_norm)
            if time.monotonic() - told_s >= TELL_EVERY_S:
                told_s = time.monotonic()
                tell(iteration, result.loss)
        return Trained(tuple(losses), tuple(norms), engine.sketch())
    finally:
        torch.set_num_threads(num_threads)
        engine.close()
