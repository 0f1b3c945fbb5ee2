"""Planning beside the training: asking returns at once, an answer comes when it is there, and a planner's failure is only an answer."""

from __future__ import annotations

import threading
import time

import pytest

from lurcher.clock import SystemClock
from lurcher.control.background import Background
from lurcher.control.orders import PlanReport
from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.plan.problem import Problem
from lurcher.records import Action, Plan

LAYOUT = Layout.uniform(tp=1, pp=1, dp=2, num_layers=2, num_microbatches=4)
RATES = Rates(forward_s=1.0, backward_s=2.0)


def problem(split: tuple[int, int]) -> Problem:
    return Problem(layout=LAYOUT.with_split(split), rates=RATES)


class Slow:
    """Plans nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, asked: Problem) -> tuple[Plan, ...]:
        self.asked.append(asked.layout.split)
        assert self.go.wait(10.0)
        return (Plan(asked.layout, (Action("keep", "keep"),), 1.0, 1.0, 1.0, 0.0, 0, "no better one"),)


def wait_for(background: Background, iteration: int) -> PlanReport:
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        found = background.answer(iteration)
        if found is not None:
            return found
    raise AssertionError("no answer in 10 s")


def test_no_answer_is_waited_for_and_only_the_last_question_is_put_next() -> None:
    slow = Slow()
    background = Background(slow, SystemClock())
    assert background.answer(0) is None
    for m in (1, 2, 3):
        background.ask(problem((m, 4 - m)))
    assert background.answer(1) is None
    slow.go.set()
    first, second = wait_for(background, 7), wait_for(background, 9)
    assert (first.iteration, first.problem, second.problem) == (7, problem((1, 3)), problem((3, 1)))
    assert slow.asked == [(1, 3), (3, 1)] and first.plans[0].reason == "no better one" and first.took_s >= 0
    assert background.answer(10) is None
    background.ask(problem((2, 2)))
    assert wait_for(background, 11).problem == problem((2, 2))


@pytest.mark.parametrize("error", [ZeroDivisionError("no such thing"), KeyError("x")])
def test_a_failure_is_an_answer(error: Exception) -> None:
    def broken(asked: Problem) -> tuple[Plan, ...]:
        raise error

    background = Background(broken, SystemClock())
    background.ask(problem((2, 2)))
    found = wait_for(background, 3)
    assert found.plans == () and type(error).__name__ in found.failed
