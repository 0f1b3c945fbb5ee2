"""Between the supervisor and the coordinator: events to iterations, decisions to the run directory, orders to the next border."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from lurcher.clock import Clock
from lurcher.config import JobConfig
from lurcher.control.background import Background, Planner
from lurcher.control.coordinator import Coordinator
from lurcher.control.death import UNMEASURED, plan_without
from lurcher.control.measured import measured_rates
from lurcher.control.orders import BenchReport, Message, RanksLost, StepSummary
from lurcher.control.protocols import Snapshot, Watch
from lurcher.layout import Layout
from lurcher.records import BenchResult, Decision, Op, Plan, Reconfiguration
from lurcher.runlog import EventLabel, RunWriter
from lurcher.runtime.messages import Border
from lurcher.runtime.reports import StepReport
from lurcher.track.reduce import reduce_events

RATE_ITERATIONS = 5
HEALTHY_WINDOW = 15
"""The iteration whose events are kept as an example of health; kept anew only if nothing was suspected before it."""
SETTLED_ITERATIONS = 4
"""Iterations after a change of layout before its events are kept: the first ones still show the change."""


class Loss(NamedTuple):
    """Ranks that are gone, how, and the plan to go on without them."""

    ranks: tuple[int, ...]
    why: str
    plan: Plan


class LiveDirector:
    """Implements the supervisor's Director. Every effect of a decision is here; no decision is."""

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        coordinator: Coordinator,
        workload: Callable[[int], np.ndarray],
        run: RunWriter,
        watch: Watch,
        clock: Clock,
        planner: Planner,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._workload = workload
        self._run = run
        self._watch = watch
        self._clock = clock
        self._background = Background(planner, clock)
        self._begin_ns = clock.now_ns()
        self._next = Border()
        self._iteration = -1
        self._kept: set[str] = set()
        self._changed = -1
        self.durations_s: list[float] = []
        self.iterations: list[int] = []
        self.paused: set[int] = set()
        self.usage: list[np.ndarray] = []
        self.split = layout.split
        self._pids: dict[str, int] = {}
        self._failed = ""
        self._loss: Loss | None = None
        self.losses: list[tuple[int, float, Loss]] = []

    def started(self, pids: dict[int, int]) -> None:
        """The ranks run: from now on state.json tells others where."""
        self._pids = {str(rank): pid for rank, pid in sorted(pids.items())}
        self._write_state(0)

    def _write_state(self, generation: int) -> None:
        self._run.state({"pid": os.getpid(), "generation": generation, "ranks": self._pids})

    def border(self, iteration: int) -> Border:
        """Orders of the coordinator so far; each is given once."""
        border, self._next = self._next, Border()
        return border

    def observe(self, report: StepReport) -> None:
        """One committed iteration: reduce its events, tell the coordinator, keep the records."""
        if not self._failed:
            self._guarded(lambda: self._observe(report))

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Results of the benchmark at the last border."""
        if not self._failed:
            self._guarded(lambda: self._tell(BenchReport(self._iteration, results, missing)))

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str) -> Layout | None:
        """The layout to go on with when ranks are gone, from the rates measured so far."""
        try:
            plan, reason = self._plan_without(ranks, layout)
        except Exception as error:  # noqa: BLE001 - whatever it is: the job then ends with the dead rank's name, as without a planner
            self._run.log("".join(traceback.format_exception(error)))
            plan, reason = None, f"planning without it failed ({type(error).__name__}: {error})"
        self._note_fault(f"{why}; {'going on: ' if plan else 'the job ends: '}{reason}")
        self._loss = None if plan is None else Loss(ranks, why, plan)
        return None if plan is None else plan.layout

    def _plan_without(self, ranks: tuple[int, ...], layout: Layout) -> tuple[Plan | None, str]:
        view, slowdown = self._coordinator.view, self._coordinator.watchlist.slowdown
        rates = measured_rates(view.model, layout, view.recent_workload(), slowdown) if view.ready else UNMEASURED
        return plan_without(self._config.model, layout, ranks, rates, self._config.layout.schedule)

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on without the ranks that were lost last."""
        loss = self._loss
        if loss is None:
            return
        plan = msgspec.structs.replace(loss.plan, layout=layout, pause_s=pause_s)
        reason = (
            f"{loss.why}; {plan.actions[0].text}, generation {layout.generation} from iteration {iteration} on, {pause_s:.2f} s after it was missed"
        )
        done = Reconfiguration(plan, layout.generation, iteration, pause_s, 0, "applied", reason)
        self.losses.append((iteration, pause_s, loss))
        self.split, self._changed = layout.split, iteration
        for rank in loss.ranks:
            self._pids.pop(str(rank), None)
        self._write_state(layout.generation)
        if not self._failed:
            self._guarded(lambda: self._tell(RanksLost(iteration, loss.ranks, done)))

    def _note_fault(self, reason: str) -> None:
        self._run.decide(Decision(self._iteration, self._now_s(), "fault", reason))
        self._watch.note(reason)

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is: a diagnosis that fails must never stop the training
            self._failed = f"the diagnosis failed after iteration {self._iteration} ({type(error).__name__}: {error}); training goes on without it"
            self._next = Border()
            self._run.log("".join(traceback.format_exception(error)))
            self._run.decide(Decision(self._iteration, self._now_s(), "fault", self._failed))
            self._watch.note(self._failed)

    def _observe(self, report: StepReport) -> None:
        self._iteration = report.iteration
        workload = self._workload(report.iteration)
        rows, chunks = reduce_events(report.events, report.layout, workload, report.iteration, report.window_ns)
        pauses = report.events[report.events["op"] == Op.PAUSE]
        pause_s = float((pauses["end_ns"] - pauses["start_ns"]).max()) * 1e-9 if len(pauses) else 0.0
        duration_s = float(np.median(rows["duration_s"]))
        expected_s = self._coordinator.view.model.expected_s(report.layout, workload)
        rows["expected_s"] = expected_s
        self.durations_s.append(duration_s)
        self.iterations.append(report.iteration)
        if pause_s:
            self.paused.add(report.iteration)
        self.usage.append(report.usage)
        self._run.iterations(rows)
        if report.layout.split != self.split:
            self.split, self._changed = report.layout.split, report.iteration
            self._write_state(report.layout.generation)
        answer = self._background.answer(report.iteration)
        if answer is not None:
            self._tell(answer)
        label = self._tell(StepSummary(report.iteration, report.layout, rows, chunks, workload, duration_s, pause_s))
        self._keep_events(report, label)
        self._show(report, duration_s)

    def _tell(self, message: Message) -> str:
        now_s = self._now_s()
        out = self._coordinator.step(now_s, message)
        took_s = self._now_s() - now_s
        for decision in out.decisions:
            self._keep(now_s, decision)
            if decision.kind != "ladder":
                self._watch.note(decision.reason)
        if any(decision.kind == "plan" for decision in out.decisions):
            self._keep(now_s, Decision(self._iteration, now_s, "note", f"deciding on it took {took_s:.3f} s, after the iteration was sealed"))
        if out.bench or out.layout is not None:
            self._next = Border(out.layout, out.bench)
        if out.problem is not None:
            self._background.ask(out.problem)
        return out.keep_events

    def _keep(self, now_s: float, decision: Decision) -> None:
        self._run.decide(decision)
        self._run.log(f"{now_s:9.2f} s  iteration {decision.iteration:5d}  {decision.kind}: {decision.reason}")

    def _now_s(self) -> float:
        return (self._clock.now_ns() - self._begin_ns) * 1e-9

    def _keep_events(self, report: StepReport, label: str) -> None:
        """A window of events per phase is enough to draw the pipeline before, during and after."""
        quiet = self._coordinator.state == "observe"
        wanted: list[EventLabel] = []
        if report.iteration == HEALTHY_WINDOW and quiet:
            wanted.append("healthy")
        if label in ("suspect", "slow"):
            wanted.append("suspect" if label == "suspect" else "slow")
        if self._changed >= 0 and report.iteration == self._changed + SETTLED_ITERATIONS:
            wanted.append("mitigated" if self._coordinator.watchlist else "recovered")
        for name in wanted:
            if name not in self._kept:
                self._kept.add(name)
                self._run.events(report.iteration, name, report.events)

    def _show(self, report: StepReport, duration_s: float) -> None:
        recent = self.durations_s[-RATE_ITERATIONS:]
        self._watch.update(
            Snapshot(
                iteration=report.iteration,
                num_iterations=self._config.job.iterations,
                iterations_per_min=60.0 / median(recent),
                loss=report.loss,
                state=self._coordinator.state,
                reason=self._coordinator.reason,
                split=report.layout.split,
            )
        )
