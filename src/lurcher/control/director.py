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
from lurcher.control.death import UNMEASURED, Way, way_on
from lurcher.control.orders import BenchReport, Message, RanksLost, StepSummary
from lurcher.control.protocols import Snapshot, Watch
from lurcher.control.respawn import Respawner
from lurcher.control.sameness import Step
from lurcher.layout import Layout
from lurcher.records import BenchResult, Decision, Op, Plan, Reconfiguration
from lurcher.runlog import EventLabel, RunWriter
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.reports import Resumption, StepReport
from lurcher.track.reduce import reduce_events
from lurcher.track.transfers import reduce_transfers

RATE_ITERATIONS = 5
HEALTHY_WINDOW = 15
"""The iteration whose events are kept as an example of health; kept anew only if nothing was suspected before it."""
SETTLED_ITERATIONS = 4
"""Iterations after a change of layout before its events are kept: the first ones still show the change."""


class Loss(NamedTuple):
    """Ranks that are gone, how, and the plan to go on without them: why it, as a sentence."""

    ranks: tuple[int, ...]
    why: str
    plan: Plan
    reason: str


class Stop(NamedTuple):
    """A loss that the job has come through: the iteration that it went on with, how many are computed again, and all seconds lost."""

    iteration: int
    num_again: int
    lost_s: float
    loss: Loss


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
        self._respawner = Respawner()
        self._generation = layout.generation
        self._begin_ns = clock.now_ns()
        self._next = Border()
        self._iteration = -1
        self._kept: dict[str, int] = {}
        self._changed = -1
        self.durations_s: list[float] = []
        self.iterations: list[int] = []
        self.paused: set[int] = set()
        self.usage: list[np.ndarray] = []
        self.steps: dict[int, Step] = {}
        """By iteration, kept apart from the diagnosis, which may fail."""
        self.copies_s: list[float] = []
        self.copy_bytes: tuple[int, ...] = ()
        """Most memory that copies took, rank by rank."""
        self.split = layout.split
        self._pids: dict[str, int] = {}
        self._failed = ""
        self._loss: Loss | None = None
        self.losses: list[Stop] = []

    def started(self, pids: dict[int, int]) -> None:
        """The ranks run: from now on state.json tells others where."""
        self._pids = {str(rank): pid for rank, pid in sorted(pids.items())}
        self._write_state(0)

    def _write_state(self, generation: int) -> None:
        self._generation = generation
        self._run.state({"pid": os.getpid(), "generation": generation, "ranks": self._pids})

    def returning(self, absent: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks whose time to be started again has come."""
        answer = self._respawner.step(self._now_s(), absent)
        for reason in answer.reasons:
            self._note(reason)
        return answer.ranks

    def revived(self, rank: int, pid: int) -> None:
        """A rank that was lost takes part again."""
        self._pids[str(rank)] = pid
        self._write_state(self._generation)
        self._note(f"rank {rank} is back, with pid {pid}, and stands by")

    def _note(self, reason: str) -> None:
        self._run.decide(Decision(self._iteration, self._now_s(), "note", reason))
        self._watch.note(reason)

    def border(self, iteration: int) -> Border:
        """Orders of the coordinator so far; each is given once."""
        border, self._next = self._next, Border()
        return border

    def observe(self, report: StepReport) -> None:
        """One committed iteration: reduce its events, tell the coordinator, keep the records."""
        self.steps[report.iteration] = Step(report.loss, report.grad_norm)
        if report.copy_s:
            self.copies_s.append(report.copy_s)
            self.copy_bytes = max(self.copy_bytes, report.copy_bytes, key=sum)
        if not self._failed:
            self._guarded(lambda: self._observe(report))

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Results of the benchmark at the last border."""
        if not self._failed:
            self._guarded(lambda: self._tell(BenchReport(self._iteration, results, missing)))

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        """How to go on when ranks are gone, by the rates measured so far: from the present state if the others hold it, else from the cut."""
        try:
            way = self._way_on(ranks, layout, iteration, cut)
        except Exception as error:  # noqa: BLE001 - whatever it is: the job then ends with the dead rank's name, as without a planner
            self._run.log("".join(traceback.format_exception(error)))
            way = Way(None, None, f"planning without it failed ({type(error).__name__}: {error})")
        self._note_fault(f"{why}; {'going on: ' if way.plan else 'the job ends: '}{way.reason}")
        self._loss = None if way.plan is None else Loss(ranks, why, way.plan, way.reason)
        return None if way.plan is None else Resumption(way.plan.layout, way.cut)

    def _way_on(self, ranks: tuple[int, ...], layout: Layout, iteration: int, cut: Cut | None) -> Way:
        view, watchlist = self._coordinator.view, self._coordinator.watchlist
        rates = view.rates(watchlist.slowdown, watchlist.links) if view.ready else UNMEASURED
        element_bytes = 8 if self._config.job.dtype == "float64" else 4
        return way_on(self._config.model, layout, ranks, rates, self._config.layout.schedule, iteration, cut, element_bytes=element_bytes)

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on without the ranks that were lost last, perhaps with an iteration that it had already left behind."""
        loss = self._loss
        if loss is None:
            return
        again_s = self._go_back(iteration)
        words = f"{loss.plan.actions[0].text}, generation {layout.generation} from iteration {iteration} on"
        if again_s:
            words += f", with {len(again_s)} iteration{'s' * (len(again_s) > 1)} to compute again"
        plan = msgspec.structs.replace(loss.plan, layout=layout, pause_s=pause_s)
        reason = f"{loss.why}; {words}, {pause_s:.2f} s after it was missed"
        done = Reconfiguration(plan, layout.generation, iteration, pause_s, plan.bytes_moved, "applied", reason)
        self.losses.append(Stop(iteration, len(again_s), pause_s + sum(again_s), loss))
        self.split, self._changed = layout.split, iteration
        for rank in loss.ranks:
            self._pids.pop(str(rank), None)
        self._write_state(layout.generation)
        if not self._failed:
            self._guarded(lambda: self._tell(RanksLost(iteration, loss.ranks, done)))

    def _go_back(self, iteration: int) -> list[float]:
        """The records forget `iteration` and all after it; returns what those took. An order that was not given yet was for a layout that is gone."""
        self._next = Border()
        num_kept = sum(known < iteration for known in self.iterations)
        again_s = self.durations_s[num_kept:]
        if again_s:
            self._run.go_back(iteration)
            self._kept = {name: at for name, at in self._kept.items() if at < iteration}
        del self.iterations[num_kept:], self.durations_s[num_kept:]
        self.steps = {known: step for known, step in self.steps.items() if known < iteration}
        self.paused = {known for known in self.paused if known < iteration}
        self._iteration = iteration - 1
        return again_s

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
        expected_s = self._coordinator.view.expected_s(report.layout, workload)
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
        step = StepSummary(report.iteration, report.layout, rows, chunks, workload, duration_s, pause_s, report.moved_bytes)
        if self._coordinator.view.transfers is not None:
            step = msgspec.structs.replace(step, transfers=reduce_transfers(report.events, report.layout))
        label = self._tell(step)
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
        if out.bench or out.rounds or out.layout is not None:
            self._next = Border(out.layout, out.bench, rounds=out.rounds)
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
                self._kept[name] = report.iteration
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
