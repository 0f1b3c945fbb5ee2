"""Plans made beside the training: one question at a time, in a thread of its own, so that no border ever waits for an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from lurcher.clock import Clock
from lurcher.control.orders import PlanReport
from lurcher.plan.problem import Problem
from lurcher.records import Plan

Planner = Callable[[Problem], tuple[Plan, ...]]
"""Ranked plans for a problem. It may take its time."""


class Background:
    """Asks a planner. Of the questions that come in while it thinks only the last one is put next: the faults have changed since."""

    def __init__(self, planner: Planner, clock: Clock) -> None:
        self._planner = planner
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._waiting: Problem | None = None
        self._answers: SimpleQueue[PlanReport] = SimpleQueue()

    def ask(self, problem: Problem) -> None:
        """Plan for this one, at once or after the one in work; returns without waiting."""
        if self._thread is None:
            # A daemon: a planner that never ends must not keep the job from ending.
            self._thread = threading.Thread(target=self._work, args=(problem,), name="lurcher-planner", daemon=True)
            self._thread.start()
        else:
            self._waiting = problem

    def answer(self, iteration: int) -> PlanReport | None:
        """The answer that has come since, for the coordinator, dated with the iteration; None while there is none."""
        try:
            found = self._answers.get_nowait()
        except Empty:
            return None
        self._thread = None
        if self._waiting is not None:
            problem, self._waiting = self._waiting, None
            self.ask(problem)
        return PlanReport(iteration, found.problem, found.plans, found.took_s, found.failed)

    def _work(self, problem: Problem) -> None:
        begin_ns = self._clock.now_ns()
        plans: tuple[Plan, ...] = ()
        failed = ""
        try:
            plans = self._planner(problem)
        except Exception as error:  # noqa: BLE001 - whatever it is: advice that fails must not end the diagnosis, let alone the training
            failed = f"the planner failed ({type(error).__name__}: {error})"
        self._answers.put(PlanReport(-1, problem, plans, (self._clock.now_ns() - begin_ns) * 1e-9, failed))
