"""The planner's price against scalar loops and the event-driven simulation, on layouts uneven in everything, with routes; and its properties."""

from __future__ import annotations

import math
import random
import time

import msgspec
import numpy as np
import pytest
import scalar_price
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import random_layout

from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.model.price import price, price_many, replica_tables, replica_tables_many, routed_texts
from lurcher.model.rates import LinkRate, Rates
from lurcher.model.schedule import SCHEDULES


def random_rates(rng: random.Random) -> Rates:
    def some(low: float, high: float) -> float:
        return rng.choice([0.0, rng.uniform(low, high)])

    links = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(["node", "rank"])
        a, b = rng.sample(range(8 if kind == "node" else 64), 2)
        links.append(LinkRate(a, rng.choice([b, b, -1, a if kind == "node" else b]), rng.uniform(1, 9), kind))
    return Rates(
        forward_s=rng.uniform(0.5, 2),
        backward_s=rng.uniform(0.5, 2),
        weight_s=some(0.5, 2),
        embed_layers=some(0.1, 1),
        head_layers=some(0.1, 1),
        launch_s=some(0.1, 1),
        tp_efficiency=rng.choice([(1.0,), (1.0, 0.9), (1.0, 0.95, 0.8)]),
        tp_bytes=some(0.1, 1),
        hop_s=some(0.1, 1),
        hop_bytes=some(0.1, 1),
        sync_bytes_per_layer=some(0.1, 1),
        optimizer_layer_s=some(0.1, 1),
        overhead_s=some(0.1, 1),
        link_bytes_per_s=some(0.5, 2),
        node_bytes_per_s=some(2, 5),
        places=rng.choice([{}, {rng.randrange(64): rng.randrange(8) for _ in range(10)}]),
        slowdown={rng.randrange(64): rng.uniform(1, 3) for _ in range(rng.randint(0, 9))},
        links=tuple(links),
        device_bytes=100.0,
        layer_bytes=1.0,
        activation_bytes=1.0,
    )


@pytest.mark.parametrize("seed", range(6))
def test_equals_scalar_loops_and_the_event_driven_simulation(seed: int) -> None:
    """240 layouts in all, half of them with routes, on all schedules."""
    rng = random.Random(seed)
    for case in range(40):
        schedule = rng.choice(SCHEDULES)
        routes = case % 2 == 1
        layout = random_layout(rng, routes=routes, num_chunks=rng.choice([1, 2]) if schedule == "interleaved" else 1)
        rates = random_rates(rng)
        found = price(layout, rates, schedule)
        texts = routed_texts(layout, rates, schedule)
        assert bool(texts) == bool(layout.routes)
        last, held = scalar_price.replica_ends(layout, rates, schedule, texts)
        assert found.pipeline_s == pytest.approx(last), (case, schedule)
        assert found.sync_s == pytest.approx(scalar_price.sync_s(layout, rates))
        assert found.optimizer_s == pytest.approx(scalar_price.optimizer_s(layout, rates))
        assert found.iteration_s == pytest.approx(max(last) + found.sync_s + found.optimizer_s + rates.overhead_s)
        shares = [max(stage.shares, default=0) / max(sum(stage.shares), 1) for _, _, stage in layout.stages()]
        assert found.memory.activation_bytes == pytest.approx([h * share for h, share in zip(held, shares, strict=True)])
        assert found.pipeline_s == price(layout, rates, schedule).pipeline_s


def test_many_at_once_equal_each_alone() -> None:
    rng = random.Random(3)
    for schedule in SCHEDULES:
        rates = random_rates(rng)
        layouts = [random_layout(rng, routes=i % 3 == 0) for i in range(30)]
        layouts += [layout.with_split(layout.split[::-1]) for layout in layouts if not layout.routes and len(layout.replicas) > 1]
        for layout, many in zip(layouts, price_many(layouts, rates, schedule), strict=True):
            alone = price(layout, rates, schedule)
            assert many.pipeline_s == pytest.approx(alone.pipeline_s)
            assert (many.sync_s, many.optimizer_s, many.worst_stage, many.fits) == (alone.sync_s, alone.optimizer_s, alone.worst_stage, alone.fits)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tables_are_the_price_of_every_count(schedule: str) -> None:
    rng = random.Random(5)
    for _ in range(10):
        layout = random_layout(rng, num_chunks=2 if schedule == "interleaved" else 1)
        rates = msgspec.structs.replace(random_rates(rng), device_bytes=0.0)
        tables = replica_tables(layout, rates, 6, schedule)
        for m in range(7):
            one = Layout(layout.num_layers, m * len(layout.replicas), tuple(Replica(r.stages, m) for r in layout.replicas))
            times = np.array(price(one, rates, schedule).pipeline_s)
            if schedule != "interleaved":
                assert [table[m] for table in tables] == pytest.approx(times)
            else:
                assert all(table[m] >= t * (1 - 1e-12) for table, t in zip(tables, times, strict=True))
        assert all((np.diff(table) >= 0).all() for table in tables)
        assert all(np.array_equal(a, b) for a, b in zip(tables, replica_tables_many([layout, layout], rates, 6, schedule)[1], strict=True))


def test_tables_end_where_memory_ends() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=1, num_layers=4, num_microbatches=4)
    rates = Rates(forward_s=1, backward_s=2, device_bytes=30, layer_bytes=5, activation_bytes=2)
    # A stage holds 2 layers: 10 bytes of state leave room for 5 micro-batches of 4 bytes each.
    assert len(replica_tables(layout, rates, 9, "gpipe")[0]) == 6
    assert len(replica_tables(layout, rates, 9, "1f1b")[0]) == 10  # never more than 2 at once
    assert not price(layout.with_split((4,)), msgspec.structs.replace(rates, device_bytes=17), "1f1b").fits
    assert price(layout, msgspec.structs.replace(rates, device_bytes=18), "1f1b").fits
    assert not price(layout, msgspec.structs.replace(rates, device_bytes=18, staging_bytes=1), "1f1b").fits
    assert len(replica_tables(layout, msgspec.structs.replace(rates, device_bytes=9), 9)[0]) == 1  # not even the state fits
    for cap in range(1, 12):
        for count in range(len(replica_tables(layout, rates, cap, "gpipe")[0])):
            one = Layout(4, count, (Replica(layout.replicas[0].stages, count),))
            assert price(one, rates, "gpipe").fits


def test_a_dead_rank_with_work_takes_for_ever_and_routes_go_around_it() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
    rates = Rates(forward_s=1, backward_s=2, dead=(1,))
    assert price(layout, rates).iteration_s == math.inf
    assert replica_tables(layout, rates, 2)[0].tolist() == [0.0, math.inf, math.inf]
    first, second = layout.replicas
    around = Replica((first.stages[0], Stage((), (), first.stages[1].chunks)), 4)
    routes = tuple(Route(m, LayerRange(2, 4), 1, 1) for m in range(4))
    routed = price(Layout(4, 8, (around, second), (1,), routes), rates)
    # The stage that does it all has 8 micro-batches of 6 seconds, after a forward of 2 and before a backward of 4.
    assert 8 * 6 + 2 + 4 <= routed.iteration_s <= 1.15 * (8 * 6 + 2 + 4)
    idle = price(Layout(4, 8, (Replica(first.stages, 0), Replica(second.stages, 8))), rates)
    assert idle.iteration_s == math.inf  # it still owns its layers' state


def test_routes_relieve_a_slow_stage() -> None:
    """One stage at half speed, 4 replicas of 4 stages, 16 micro-batches each: every second of its micro-batches goes elsewhere."""
    layout = Layout.uniform(tp=1, pp=4, dp=4, num_layers=16, num_microbatches=64)
    for schedule, before, after in (("zb_h1", 1.8, 1.15), ("1f1b", 1.7, 1.14)):
        rates = Rates(forward_s=1, backward_s=1, weight_s=1, slowdown={1: 2.0})
        healthy_s = price(layout, msgspec.structs.replace(rates, slowdown={}), schedule).iteration_s
        routes = tuple(Route(m, LayerRange(4, 8), 1 + i % 3, 1) for i, m in enumerate(range(0, 16, 2)))
        routed = Layout(16, 64, layout.replicas, (), routes)
        assert price(layout, rates, schedule).iteration_s > before * healthy_s
        assert price(routed, rates, schedule).iteration_s < after * healthy_s


def test_memory_limits_what_routed_stages_hold() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=16)
    routed = Layout(4, 16, layout.replicas, (), tuple(Route(m, LayerRange(2, 4), 1, 1) for m in range(0, 8, 2)))
    wide = Rates(forward_s=1, backward_s=2, device_bytes=100, layer_bytes=1, activation_bytes=1)
    narrow = msgspec.structs.replace(wide, device_bytes=6)  # state 2, so 4 of activations: two micro-batches
    assert price(routed, narrow).fits and price(routed, narrow).memory.activation_bytes.max() == 4
    assert price(routed, wide).memory.activation_bytes.max() > 4
    assert price(routed, wide).iteration_s <= price(routed, narrow).iteration_s


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SCHEDULES))
def test_slower_parts_never_make_it_faster(seed: int, schedule: str) -> None:
    rng = random.Random(seed)
    layout, rates = random_layout(rng), random_rates(rng)
    before = price(layout, rates, schedule).iteration_s
    rank = rng.choice(layout.ranks)
    slower = msgspec.structs.replace(rates, slowdown={**rates.slowdown, rank: rates.rank_slowdown(rank) * rng.uniform(1, 3)})
    jammed = msgspec.structs.replace(rates, links=(*rates.links, LinkRate(rates.node(rank), -1, rng.uniform(1, 9))))
    assert price(layout, slower, schedule).iteration_s >= before * (1 - 1e-12)
    assert price(layout, jammed, schedule).iteration_s >= before * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SCHEDULES), st.booleans())
def test_twice_the_seconds_take_twice_as_long(seed: int, schedule: str, routes: bool) -> None:
    rng = random.Random(seed)
    layout, rates = random_layout(rng, routes=routes), random_rates(rng)
    double = {name: 2 * getattr(rates, name) for name in rates.__struct_fields__ if name.endswith("_s") and not name.endswith("bytes_per_s")}
    half = {name: getattr(rates, name) / 2 for name in ("link_bytes_per_s", "node_bytes_per_s")}
    twice = price(layout, msgspec.structs.replace(rates, **double, **half), schedule)
    assert twice.iteration_s == pytest.approx(2 * price(layout, rates, schedule).iteration_s)


def test_a_tp_group_goes_at_its_slowest_share() -> None:
    """Two ranks, one at half speed, 2 : 1 shares: both take 2/3 of a layer's time."""
    chunks = (LayerRange(0, 3),)
    rates = Rates(forward_s=1, backward_s=2, slowdown={1: 2.0})
    even = Layout(3, 1, (Replica((Stage((0, 1), (1, 1), chunks),), 1),))
    uneven = Layout(3, 1, (Replica((Stage((0, 1), (2, 1), chunks),), 1),))
    assert price(even, rates).iteration_s == pytest.approx(9.0)
    assert price(uneven, rates).iteration_s == pytest.approx(6.0)


def test_wrong_schedules_are_refused_in_one_line() -> None:
    layout = Layout(
        4, 2, (Replica((Stage((0,), (1,), (LayerRange(0, 1), LayerRange(2, 3))), Stage((1,), (1,), (LayerRange(1, 2), LayerRange(3, 4)))), 2),)
    )
    rates = Rates(forward_s=1, backward_s=2)
    assert price(layout, rates, "interleaved").iteration_s > 0
    with pytest.raises(UserError, match="'1f1b' cannot run replica 0, whose 2 stages hold 4 chunks"):
        price(layout, rates)
    with pytest.raises(UserError, match="'nope'"):
        price(layout, rates, "nope")
    swapped = Layout(4, 2, (Replica((layout.replicas[0].stages[1], layout.replicas[0].stages[0]), 2),))
    with pytest.raises(UserError, match="dealt out in turn"):
        price(swapped, rates, "interleaved")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forward_s": 0.0}, r"rates.forward_s is 0.0 .* above 0"),
        ({"hop_s": -1.0}, r"rates.hop_s is -1.0; .* 0 or more"),
        ({"layer_bytes": math.inf}, r"rates.layer_bytes is inf"),
        ({"slowdown": {3: 0.0}}, r"slowdown of rank 3 is 0.0"),
        ({"slowdown": {3: math.inf}}, r"rank 3 is inf.*listed in `dead`"),
        ({"tp_efficiency": ()}, r"tp_efficiency is \(\)"),
        ({"ranks_per_node": 0}, r"ranks_per_node is 0"),
    ],
)
def test_bad_rates_are_named(fields: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError, match=message):
        Rates(**{"forward_s": 1.0, "backward_s": 2.0, **fields})


@pytest.mark.parametrize(("a", "b", "kind"), [(-1, 2, "node"), (3, 3, "rank"), (0, -2, "node")])
def test_bad_links_are_named(a: int, b: int, kind: str) -> None:
    with pytest.raises(UserError, match=f"the link {kind} {a} to {b} does not exist"):
        LinkRate(a, b, 2.0, kind)  # type: ignore[arg-type]


def test_a_hundred_thousand_ranks_take_well_below_a_second() -> None:
    layout = Layout.uniform(tp=8, pp=8, dp=1562, num_layers=64, num_microbatches=8 * 1562)
    rates = Rates(forward_s=1, backward_s=2, slowdown={7 * i: 1.5 for i in range(2000)}, links=tuple(LinkRate(5 * i, -1, 3.0) for i in range(200)))
    start = time.perf_counter()
    price(layout, rates)
    assert time.perf_counter() - start < 2.0  # 0.1 s on two quiet cores
