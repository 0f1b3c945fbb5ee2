"""The replay against plain loops over operations, and the graph against the walk of the schedule's own text."""

from __future__ import annotations

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_graph import Graph, build_graph
from lurcher.localize.whatif_order import walk_order
from lurcher.localize.whatif_replay import replay
from lurcher.localize.whatif_scenarios import Scenario, ideal_step, run, run_alone
from lurcher.localize.whatif_table import OpTable
from lurcher.localize.whatif_times import OpTimes
from lurcher.model.critical_path import makespans
from lurcher.model.order import compile_schedule
from lurcher.model.schedule import schedule_text


def random_times(graph: Graph, replicas: int, steps: int, seed: int, *, negative: bool = False) -> OpTimes:
    """Own and ideal times without any rule; transfers may be negative by little, as clocks make them."""
    rng = np.random.default_rng(seed)
    real = rng.uniform(0.1, 2.0, (len(graph.table), replicas, steps))
    ideal = rng.uniform(0.1, 2.0, len(graph.table))
    if negative:
        grouped = graph.grouped()
        real[grouped] -= 0.15
        ideal[grouped] -= 0.15
    return OpTimes(real, ideal)


def order_of(graph: Graph, times: OpTimes) -> Any:
    return walk_order(graph, (times.real_s.min(axis=(1, 2)) >= 0) & (times.ideal_s >= 0))


@settings(max_examples=30)
@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 2)), seed=st.integers(0, 1000), negative=st.booleans())
def test_any_scenario_is_what_plain_loops_find(made: ModuleType, sizes: tuple[int, int, int, int], seed: int, negative: bool) -> None:
    stages, replicas, microbatches, steps = sizes
    graph = build_graph(made.one_replica(stages, microbatches))
    times = random_times(graph, replicas, steps, seed, negative=negative)
    order, rng = order_of(graph, times), np.random.default_rng(seed)
    scenarios = [Scenario()]
    for _ in range(4):
        ops, cells, keep = rng.random(len(graph.table)) < 0.5, rng.random((stages, replicas)) < 0.5, bool(rng.random() < 0.5)
        scenarios += [Scenario(ops, cells, keep), Scenario(ops, None, keep), Scenario(None, cells, keep)]
    found = run(order, times, graph.table.stage, scenarios)
    for one, seconds in zip(scenarios, found, strict=True):
        inside = np.ones(times.real_s.shape[:2], bool)
        if one.ops is not None:
            inside &= one.ops[:, None]
        if one.cells is not None:
            inside &= one.cells[graph.table.stage]
        mixed = np.where((inside == one.keep)[:, :, None], times.real_s, times.ideal_s[:, None, None])
        assert seconds == pytest.approx(made.plain_replay(graph, mixed), rel=1e-12)
    assert ideal_step(order, times) == pytest.approx(
        made.plain_replay(graph, np.broadcast_to(times.ideal_s[:, None, None], (len(order_ops(graph)), 1, 1)))[0]
    )


def order_ops(graph: Graph) -> range:
    return range(len(graph.table))


@settings(max_examples=20)
@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 1000))
def test_one_replica_alone_is_exact_for_every_worker(made: ModuleType, sizes: tuple[int, int, int], seed: int) -> None:
    """Two members stand for all replicas; plain loops over all of them agree."""
    stages, replicas, microbatches = sizes
    graph = build_graph(made.one_replica(stages, microbatches))
    times = random_times(graph, replicas, 2, seed)
    sets = [graph.table.stage == s for s in range(stages)]
    found = run_alone(order_of(graph, times), times, sets)
    for stage, dp in product(range(stages), range(replicas)):
        mixed = np.broadcast_to(times.ideal_s[:, None, None], times.real_s.shape).copy()
        mixed[sets[stage], dp] = times.real_s[sets[stage], dp]
        assert found[stage, dp] == pytest.approx(made.plain_replay(graph, mixed), rel=1e-12)


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(4, 8, 1), (1, 3, 1), (2, 4, 2), (4, 8, 3)])
def test_without_transfers_the_graph_is_the_schedule(made: ModuleType, stages: int, microbatches: int, chunks: int) -> None:
    """The walk of the schedule's text, which knows nothing of traces, takes as long."""
    table = made.one_replica(stages, microbatches, chunks)
    graph = build_graph(table)
    rng = np.random.default_rng(stages)
    forward, backward = rng.uniform(0.5, 2, (2, stages * chunks, microbatches))
    costs = np.zeros(len(table))
    for kind, seconds in ((TraceOp.FORWARD, forward), (TraceOp.BACKWARD, backward)):
        mine = table.op == kind
        costs[mine] = seconds[table.model_chunk[mine], table.microbatch[mine]]
    order = walk_order(graph, np.ones(len(table), bool))
    name = "interleaved" if chunks > 1 else "1f1b"
    expected = makespans(compile_schedule(schedule_text(name, stages, microbatches, chunks)), forward, backward)
    assert replay(order, lambda op: costs[op : op + 1, None, None], (1, 1, 1))[0, 0] == pytest.approx(float(expected), rel=1e-12)


def test_ends_are_dropped_as_the_walk_passes(made: ModuleType) -> None:
    """A step of eight times as many micro-batches needs no more ends at a time."""
    most = []
    for microbatches in (16, 128):
        graph = build_graph(made.one_replica(4, microbatches))
        order = walk_order(graph, np.ones(len(graph.table), bool))
        alive, peak = 0, 0
        for node in order.nodes:
            alive += len(node.members)
            peak = max(peak, alive)
            alive -= len(node.last_use)
        most.append(peak)
    assert most[1] <= most[0] + 4


def changed(table: OpTable, **columns: np.ndarray) -> OpTable:
    names = ("path", "stage", "op", "seq", "chunk", "microbatch", "model_chunk", "start_s", "end_s")
    return OpTable(**({name: getattr(table, name) for name in names} | columns))


def without(table: OpTable, place: int) -> OpTable:
    names = ("stage", "op", "seq", "chunk", "microbatch", "model_chunk", "start_s", "end_s")
    return changed(table, **{name: np.delete(getattr(table, name), place) for name in names})


def place_of(table: OpTable, op: TraceOp, stage: int) -> int:
    return int(np.flatnonzero((table.op == op) & (table.stage == stage))[-1])


@pytest.mark.parametrize("op", [TraceOp.FORWARD_RECV, TraceOp.FORWARD_SEND, TraceOp.BACKWARD_SEND])
def test_a_missing_transfer_is_one_clear_line(made: ModuleType, op: TraceOp) -> None:
    table = made.one_replica(4, 4)
    with pytest.raises(UserError, match=r"made up.* on stage 1 for 4 micro-batches|has no partner") as caught:
        build_graph(without(table, place_of(table, op, 1)))
    assert "\n" not in str(caught.value)


def test_a_stage_without_backward_passes_is_refused(made: ModuleType) -> None:
    table = made.one_replica(2, 1)
    with pytest.raises(UserError, match="no backward-compute on stage 1"):
        build_graph(without(table, place_of(table, TraceOp.BACKWARD, 1)))


def test_a_circle_is_refused_with_a_name(made: ModuleType) -> None:
    """Stage 0 wants a gradient before it goes on, stage 1 the next forward pass before it makes that gradient."""
    table = made.one_replica(2, 3)
    start, end = table.start_s.copy(), table.end_s.copy()

    def at(op: TraceOp, stage: int, microbatch: int) -> int:
        return int(np.flatnonzero((table.op == op) & (table.stage == stage) & (table.microbatch == microbatch))[0])

    first, second = at(TraceOp.FORWARD, 0, 0), at(TraceOp.FORWARD, 0, 1)
    gradient, forward = at(TraceOp.BACKWARD, 0, 0), at(TraceOp.FORWARD, 1, 1)
    start[gradient] = 0.5 * (start[first] + start[second])
    start[forward] = start[at(TraceOp.BACKWARD, 1, 0)] - 0.01
    graph = build_graph(changed(table, start_s=start, end_s=end))
    with pytest.raises(UserError, match=r"wait for each other in a circle, among them .*contradict the order of a pipeline"):
        walk_order(graph, np.ones(len(table), bool))
