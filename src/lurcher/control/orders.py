"""What goes into the coordinator and what comes out: plain values, so that a live job, a test and a simulator can all drive it."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.plan.problem import Problem
from lurcher.records import TRANSFER, BenchResult, Decision, Plan, Reconfiguration
from lurcher.validate.rounds import Round


class StepSummary(msgspec.Struct, frozen=True):
    """One committed iteration: ITERATION rows (one a rank), CHUNK rows, WORKLOAD rows (one a global micro-batch)."""

    iteration: int
    layout: Layout
    rows: NDArray[np.void]
    chunks: NDArray[np.void]
    workload: NDArray[np.void]
    duration_s: float
    pause_s: float = 0.0
    """Pause that the ranks spent at the border before this iteration."""
    moved_bytes: int = 0
    """Of state, between ranks, at that border."""
    transfers: NDArray[np.void] = msgspec.field(default_factory=lambda: np.zeros(0, TRANSFER))
    """TRANSFER rows, where slow links are looked for."""


class BenchReport(msgspec.Struct, frozen=True):
    """Results of the benchmark that was ordered last; `missing` ranks gave none in time."""

    iteration: int
    results: tuple[BenchResult, ...]
    missing: tuple[int, ...] = ()


class PlanReport(msgspec.Struct, frozen=True):
    """Ranked plans for a problem that was ordered, and how long the planner took, beside the training. `failed` says why there are none."""

    iteration: int
    problem: Problem
    plans: tuple[Plan, ...]
    took_s: float
    failed: str = ""


class RanksLost(msgspec.Struct, frozen=True):
    """Ranks are gone; the job went on with `iteration` under another layout. `done` says how."""

    iteration: int
    ranks: tuple[int, ...]
    done: Reconfiguration


Message = StepSummary | BenchReport | PlanReport | RanksLost


class Outbox(msgspec.Struct, frozen=True):
    """Orders for the next border, and the decisions that led to them."""

    bench: tuple[int, ...] = ()
    """Ranks to benchmark."""
    rounds: tuple[Round, ...] = ()
    """Links to benchmark: round by round, pairs of ranks."""
    layout: Layout | None = None
    problem: Problem | None = None
    """To be planned for beside the training, which does not wait for the answer."""
    decisions: tuple[Decision, ...] = ()
    keep_events: str = ""
    """Label under which this iteration's events are worth keeping; empty: they are not."""
