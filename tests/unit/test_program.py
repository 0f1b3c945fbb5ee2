"""What every stage runs, from the layout alone: each leg of each micro-batch once, in an order that can run, and in the time that its price says."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import random_layout
from scalar_price import replica_ends
from test_cost import Job, layout_of, trained

from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.model.layout_walk import LayoutWalk
from lurcher.model.price import price
from lurcher.model.program import ALIKE, borders, joints, ordered, paths, tasks
from lurcher.model.rates import Rates
from lurcher.model.schedule import schedule_text


def routed(layout: Layout, *routes: tuple[int, int, int, int, int]) -> Layout:
    """`routes` as (micro-batch, first layer, end, replica, stage)."""
    return msgspec.structs.replace(layout, routes=tuple(Route(m, LayerRange(a, b), d, s) for m, a, b, d, s in routes))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_stages_together_run_every_layer_once_each_way_and_in_an_order_that_ends(seed: int) -> None:
    layout = random_layout(random.Random(seed), routes=True)
    todo = {(d, s): list(tasks(layout, "1f1b", d, s)) for d, s, _ in layout.stages()}
    assert all(
        layout.executor(task.microbatch, layer) == place
        for place, mine in todo.items()
        for task in mine
        for layer in range(task.leg.first, task.leg.end)
    )
    ran = {(kind, m): [] for kind in "FB" for m in range(layout.num_microbatches)}
    while any(todo.values()):
        before = sum(map(len, todo.values()))
        for mine in todo.values():
            # What a task needs, told from the layers alone: those below it forward, those above it backward.
            while mine and ran[mine[0].kind, mine[0].microbatch] == (
                list(range(mine[0].leg.first)) if mine[0].kind == "F" else list(reversed(range(mine[0].leg.end, layout.num_layers)))
            ):
                task = mine.pop(0)
                layers = range(task.leg.first, task.leg.end)
                ran[task.kind, task.microbatch] += layers if task.kind == "F" else reversed(layers)
        assert sum(map(len, todo.values())) < before, "nobody can go on"
    assert all(sorted(layers) == list(range(layout.num_layers)) for layers in ran.values())


def test_without_routes_a_stage_runs_the_schedules_own_text() -> None:
    layout = Layout.uniform(tp=2, pp=3, dp=2, num_layers=6, num_microbatches=7)
    for d, s, _ in layout.stages():
        mine = tasks(layout, "1f1b", d, s)
        words = schedule_text("1f1b", 3, layout.split[d])[s].split()
        assert [f"{task.kind}{task.microbatch - layout.microbatches_of(d).start}" for task in mine] == words
        assert {task.leg[:4] for task in mine} == {(d, s, 2 * s, 2 * s + 2)}
    assert borders(layout) == {((d, s), (d, s + 1)) for d in range(2) for s in range(2)}


def test_a_path_leads_there_and_back_and_counts_its_visits() -> None:
    layout = routed(Layout.uniform(tp=1, pp=1, dp=2, num_layers=4, num_microbatches=4), (0, 1, 2, 1, 0), (2, 0, 2, 0, 0), (2, 2, 3, 0, 0))
    found = {m: [leg[2:] for leg in path] for m, path in paths(layout).items()}
    assert found == {0: [(0, 1, 0), (1, 2, 0), (2, 4, 1)], 1: [(0, 4, 0)], 2: [(0, 2, 0), (2, 3, 1), (3, 4, 0)], 3: [(0, 4, 0)]}
    assert borders(layout) == {((0, 0), (1, 0)), ((1, 0), (0, 0))}


def test_an_ordered_layout_runs_what_its_price_assumes() -> None:
    """A stage at a third of the speed gives five of its eight micro-batches away: made for equal stages the order would take longer."""
    layout = Layout.uniform(tp=1, pp=2, dp=4, num_layers=8, num_microbatches=32)
    layout = routed(layout, *((m, 4, 8, 1 + k % 3, 1) for k, m in enumerate((0, 2, 4, 5, 7))))
    rates = Rates(forward_s=0.01, backward_s=0.02, launch_s=0.0005, head_layers=0.7, slowdown={1: 3.0})
    given_order = ordered(layout, rates, "1f1b")
    assert len(given_order.order) == 8 and given_order.digest() != layout.digest()
    assert msgspec.structs.replace(given_order, order=()) == layout

    def walked_s(one: Layout) -> float:
        texts = {
            joint.coupled.place(stage): text for joint in joints(one, "1f1b") for stage, text in zip(joint.coupled.stages, joint.texts, strict=True)
        }
        return max(replica_ends(one, rates, "1f1b", texts)[0])

    assert walked_s(given_order) == pytest.approx(max(price(layout, rates).pipeline_s))
    assert walked_s(given_order) < 0.95 * walked_s(layout)
    assert ordered(Layout.uniform(tp=1, pp=2, dp=1, num_layers=4, num_microbatches=4), rates, "1f1b").order == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda texts: (*texts[:3], texts[3].replace("B1", "B0")), "runs B0 of replica 1 stage 1 2 times|runs B1 of replica 1 stage 1 0 times"),
        (lambda texts: (" ".join(reversed(texts[0].split())), *texts[1:]), "the schedule deadlocks"),
        (lambda texts: texts[1:], "an order of work for 3 stages, but 4"),
    ],
)
def test_an_order_that_cannot_be_run_is_refused_with_the_action(change, message: str) -> None:
    layout = ordered(routed(Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=2), (0, 2, 4, 1, 1)), ALIKE, "1f1b")
    with pytest.raises(UserError, match=message):
        joints(msgspec.structs.replace(layout, order=change(layout.order)), "1f1b")


@pytest.mark.parametrize(("tp", "pp", "dp", "schedule"), [(2, 2, 2, "1f1b"), (1, 4, 2, "gpipe"), (1, 2, 2, "zb_h1"), (1, 1, 2, "1f1b")])
def test_the_walk_of_a_layout_at_home_is_the_cost_models_own(tp: int, pp: int, dp: int, schedule: str) -> None:
    layout, job = layout_of(8, tp, pp, dp).with_split((5, 3)), Job(1, schedule=schedule)
    model, walk = trained(job, layout, 12), LayoutWalk(layout, schedule)
    for slowdown in ({}, {1: 1.7}):
        work = job.workload(8)
        assert walk.seconds(model, work, slowdown) == pytest.approx(model.expected_s(layout, work, slowdown), rel=1e-12)


def test_a_routed_microbatch_costs_where_it_runs() -> None:
    """Half of a micro-batch is done by rank 1, after its own: the walk equals the sum of what the two then wait for."""
    home, job = Layout.uniform(tp=1, pp=1, dp=2, num_layers=8, num_microbatches=2), Job(2)
    model, work = trained(job, home, 12), job.workload(2)
    half = Layout.uniform(tp=1, pp=1, dp=2, num_layers=4, num_microbatches=4)  # micro-batches 0 and 1 on rank 0, 2 and 3 on rank 1
    (first_s, first_back_s), (guest_s, guest_back_s) = (
        tuple(phase[0, 0] for phase in times) for times in model.chunk_times(half, np.concatenate([work, work_again(work)]))
    )
    own_s = sum(float(phase[0, 0]) for phase in model.chunk_times(home, work)[1])
    layout = routed(home, (0, 4, 8, 1, 0))
    (joint,) = joints(layout, "1f1b")
    assert joint.texts == ("F0 B0", "F1 B1 F0 B0")  # the home's own micro-batch is ready at once
    expected_s = max(own_s, first_s) + guest_s + guest_back_s + first_back_s
    assert LayoutWalk(layout, "1f1b").seconds(model, work) == pytest.approx(expected_s + model.overhead_s)


def work_again(work: np.ndarray) -> np.ndarray:
    """The same micro-batches under the next numbers."""
    rows = work.copy()
    rows["microbatch"] += len(work)
    return rows


def test_the_walk_follows_a_stage_without_ranks() -> None:
    """All of replica 1's second stage runs in replica 0, which then has twice the work: close to the longest, its stage's own sum."""
    home, job = Layout.uniform(tp=1, pp=2, dp=2, num_layers=8, num_microbatches=16), Job(3)
    model = trained(job, home, 12)
    replica = home.replicas[1]
    stages = (replica.stages[0], Stage((), (), replica.stages[1].chunks))
    routes = tuple(Route(m, LayerRange(4, 8), 0, 1) for m in range(8, 16))
    layout = msgspec.structs.replace(home, replicas=(home.replicas[0], Replica(stages, 8)), standby=(3,), routes=routes)
    work = job.workload(16)
    everything = msgspec.structs.replace(
        home, replicas=(msgspec.structs.replace(home.replicas[0], microbatches=16), msgspec.structs.replace(replica, microbatches=0))
    )
    own_s = sum(float(np.sum(phase[1])) for phase in model.chunk_times(everything, work)[0])
    found_s = LayoutWalk(layout, "1f1b").seconds(model, work) - model.overhead_s
    assert own_s < found_s < 1.2 * own_s
