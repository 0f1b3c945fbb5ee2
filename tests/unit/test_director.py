"""Between supervisor and coordinator: records are kept, orders reach the next border once, and a failing diagnosis stops nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import header

from lurcher.clock import FakeClock
from lurcher.config import JobConfig, settled
from lurcher.control.background import Planner
from lurcher.control.coordinator import Coordinator
from lurcher.control.director import LiveDirector
from lurcher.control.orders import Outbox, PlanReport, StepSummary
from lurcher.control.protocols import Snapshot
from lurcher.control.respawn import COOL_DOWN_S
from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.plan.problem import Problem
from lurcher.records import EVENT, WORKLOAD, BenchResult, Component, Decision, Op, Plan
from lurcher.runlog import RunReader, RunWriter
from lurcher.runtime.messages import Border
from lurcher.runtime.reports import StepReport

LAYOUT = Layout.uniform(tp=1, pp=1, dp=2, num_layers=2, num_microbatches=4)


class Notes:
    """A watch that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.snapshots: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def note(self, reason: str) -> None:
        self.notes.append(reason)


def workload(iteration: int) -> np.ndarray:
    rows = np.zeros(4, WORKLOAD)
    rows["iteration"], rows["microbatch"], rows["num_tokens"] = iteration, np.arange(4), 8
    return rows


def report(iteration: int, layout: Layout = LAYOUT) -> StepReport:
    begin = iteration * 1_000_000_000
    rows = [
        (r, -1, op, 0, -1, m, 0, begin + at * 1000, begin + at * 1000 + 900, 0)
        for r in (0, 1)
        for m, op, at in ((2 * r, Op.FORWARD, 1), (2 * r, Op.BACKWARD, 3))
    ]
    window = dict.fromkeys((0, 1), (begin, begin + 1000000000))
    return StepReport(iteration, layout, 2.5, 1.0, 1e-3, np.array(rows, EVENT), window, np.array([[10, 100]]))


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return RunWriter.create(tmp_path / "run", header())


def no_plans(problem: Problem) -> tuple[Plan, ...]:
    return ()


def director(run: RunWriter, coordinator: Coordinator, watch: Notes, planner: Planner = no_plans) -> LiveDirector:
    return LiveDirector(settled(JobConfig()), LAYOUT, coordinator, workload, run, watch, FakeClock(), planner)


def test_iterations_are_kept_and_shown(run: RunWriter) -> None:
    watch = Notes()
    config = JobConfig()
    mine = director(run, Coordinator(config.detect, config.plan, LAYOUT, "1f1b", emulated=True), watch)
    mine.started({1: 11, 0: 10})
    assert json.loads((run.path / "state.json").read_text())["ranks"] == {"0": 10, "1": 11}
    for i in range(3):
        mine.observe(report(i))
    run.close()
    rows = RunReader(run.path).iterations()
    assert sorted(set(rows["index"])) == [0, 1, 2] and rows["duration_s"] == pytest.approx(1.0)
    assert [s.iteration for s in watch.snapshots] == [0, 1, 2] and watch.snapshots[-1].iterations_per_min == pytest.approx(60.0)


def test_an_order_reaches_one_border_only(run: RunWriter) -> None:
    class Orders(Coordinator):
        def step(self, now_s: float, message: object) -> Outbox:
            return Outbox(bench=(1,), decisions=(Decision(0, now_s, "note", "because"),))

    config = JobConfig()
    watch = Notes()
    mine = director(run, Orders(config.detect, config.plan, LAYOUT, "1f1b", emulated=True), watch)
    assert mine.border(0) == Border()
    mine.observe(report(0))
    assert mine.border(1) == Border(bench=(1,))
    assert mine.border(2) == Border()
    assert watch.notes == ["because"]
    assert [d.reason for d in RunReader(run.path).decisions()] == ["because"]


def test_how_long_a_plan_took_is_written_down(run: RunWriter) -> None:
    clock = FakeClock()

    class Plans(Coordinator):
        def step(self, now_s: float, message: object) -> Outbox:
            clock.sleep_s(0.125)
            return Outbox(decisions=(Decision(0, now_s, "plan", "move one"),))

    config = JobConfig()
    coordinator = Plans(config.detect, config.plan, LAYOUT, "1f1b", emulated=True)
    LiveDirector(settled(config), LAYOUT, coordinator, workload, run, Notes(), clock, no_plans).observe(report(0))
    assert [d.reason for d in RunReader(run.path).decisions()] == ["move one", "deciding on it took 0.125 s, after the iteration was sealed"]


def test_a_diagnosis_that_fails_stops_nothing_but_itself(run: RunWriter) -> None:
    class Broken(Coordinator):
        def step(self, now_s: float, message: object) -> Outbox:
            raise ZeroDivisionError("no such thing")

    config = JobConfig()
    watch = Notes()
    mine = director(run, Broken(config.detect, config.plan, LAYOUT, "1f1b", emulated=True), watch)
    for i in range(3):
        mine.observe(report(i))
        mine.benched((BenchResult(Component.of_rank(0), "gemm", 0.02, 5),), ())
        assert mine.border(i) == Border()
    assert len(watch.notes) == 1 and "training goes on" in watch.notes[0]
    (said,) = RunReader(run.path).decisions()
    assert said.kind == "fault" and "ZeroDivisionError" in said.reason
    assert "Traceback" in (run.path / "log.txt").read_text()


def test_planning_happens_beside_the_training(run: RunWriter) -> None:
    """The coordinator asks; iterations go on while the planner thinks; its answer is told once it is there."""
    problem = Problem(layout=LAYOUT, rates=Rates(forward_s=1.0, backward_s=2.0))
    thinking, told = threading.Event(), []

    class Asks(Coordinator):
        def step(self, now_s: float, message: object) -> Outbox:
            if isinstance(message, PlanReport):
                told.append(message)
            return Outbox(problem=problem if isinstance(message, StepSummary) and message.iteration == 0 else None)

    def planner(asked: Problem) -> tuple[Plan, ...]:
        assert thinking.wait(10.0)
        return ()

    config = JobConfig()
    mine = director(run, Asks(config.detect, config.plan, LAYOUT, "1f1b", emulated=True), Notes(), planner)
    for i in range(5):
        mine.observe(report(i))
    assert told == []
    thinking.set()
    for i in range(5, 2000):
        mine.observe(report(i))
        if told:
            break
    assert [message.problem for message in told] == [problem]


def test_a_lost_rank_is_wanted_back_after_its_cool_down_and_said_to_be_back(run: RunWriter) -> None:
    clock, watch, config = FakeClock(), Notes(), JobConfig()
    coordinator = Coordinator(config.detect, config.plan, LAYOUT, "1f1b", emulated=True)
    mine = LiveDirector(settled(config), LAYOUT, coordinator, workload, run, watch, clock, no_plans)
    mine.started({0: 10, 1: 11})
    assert mine.returning((1,)) == ()
    clock.sleep_s(COOL_DOWN_S)
    assert mine.returning((1,)) == (1,)
    mine.revived(1, 99)
    assert json.loads((run.path / "state.json").read_text())["ranks"] == {"0": 10, "1": 99}
    said = [decision.reason for decision in RunReader(run.path).decisions()]
    assert said == watch.notes and "started again" in said[0] and "pid 99" in said[1]
