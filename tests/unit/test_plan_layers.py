"""Layers over stages against brute force: the closed form by its own formula, the cut by the price of real layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import rates

from lurcher.layout import LayerRange, Layout
from lurcher.model.price import price, price_many
from lurcher.plan.cut_times import cut_times
from lurcher.plan.edit import with_layers
from lurcher.plan.layer_choice import layer_choices
from lurcher.plan.layers import MOST_CUTS, best_cut, propose_layers
from lurcher.plan.situation import assess


def every_cut(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    return [cut for cut in itertools.product(range(1, num_layers + 1), repeat=num_stages) if sum(cut) == num_layers]


def closed_form(cut: tuple[int, ...], layer_s: np.ndarray, fixed_s: np.ndarray, num_microbatches: int) -> float:
    times = fixed_s + layer_s * np.array(cut)
    return float((num_microbatches - 1) * times.max() + times.sum())


def test_the_closed_form_equals_brute_force_with_caps_and_ends() -> None:
    rng = np.random.default_rng(11)
    for _ in range(300):
        num_stages = int(rng.integers(1, 5))
        num_layers, m = int(rng.integers(num_stages, 10)), int(rng.integers(1, 20))
        layer_s = rng.choice([1.0, 1.0, 2.0, float(rng.uniform(0.5, 3))], num_stages)
        fixed_s = rng.choice([0.0, 0.7], num_stages)
        caps = rng.integers(1, 9, num_stages)
        allowed = [cut for cut in every_cut(num_layers, num_stages) if all(n <= cap for n, cap in zip(cut, caps, strict=True))]
        found = layer_choices(layer_s, fixed_s, caps.tolist(), num_layers, m)
        if not allowed:
            assert found == ()
            continue
        assert found[0] in allowed
        best = min(closed_form(cut, layer_s, fixed_s, m) for cut in allowed)
        assert closed_form(found[0], layer_s, fixed_s, m) == pytest.approx(best, rel=1e-12)


@given(st.lists(st.floats(0.5, 4.0), min_size=2, max_size=5), st.integers(5, 14), st.integers(1, 30), st.data())
def test_a_faster_stage_never_makes_the_best_cut_slower(layer_s: list[float], num_layers: int, m: int, data: st.DataObject) -> None:
    before = np.array(layer_s)
    after = before.copy()
    after[data.draw(st.integers(0, len(layer_s) - 1))] *= data.draw(st.floats(0.2, 1.0))
    none, caps = np.zeros(len(layer_s)), [num_layers] * len(layer_s)
    slower, faster = (closed_form(layer_choices(times, none, caps, num_layers, m)[0], times, none, m) for times in (before, after))
    assert faster <= slower * (1 + 1e-12)


def test_ties_stay_near_the_present_cut() -> None:
    alike, none = np.ones(4), np.zeros(4)
    assert layer_choices(alike, none, [10] * 4, 10, 8, present=(2, 3, 2, 3))[0] == (2, 3, 2, 3)
    assert layer_choices(alike, none, [10] * 4, 10, 8, present=(3, 3, 2, 2))[0] == (3, 3, 2, 2)
    assert layer_choices(alike, none, [10] * 4, 12, 8, present=(1, 5, 3, 3))[0] == (3, 3, 3, 3)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb_h1"])
def test_the_cut_equals_brute_force_with_the_price_of_real_layouts(schedule: str) -> None:
    rng = np.random.default_rng(12)
    for _ in range(40):
        num_stages = int(rng.integers(2, 5))
        num_layers = int(rng.integers(num_stages, 11))
        slow = {int(r): float(rng.uniform(1, 3)) for r in rng.integers(0, num_stages, int(rng.integers(1, 3)))}
        given_rates = rates(
            ranks_per_node=1,
            slowdown=slow,
            head_layers=float(rng.choice([0, 1.5])),
            launch_s=float(rng.choice([0, 0.004])),
            hop_bytes=float(rng.choice([0, 5e7])),
        )
        layout = Layout.uniform(tp=1, pp=num_stages, dp=1, num_layers=num_layers, num_microbatches=int(rng.integers(1, 17)))
        sizes = tuple(stage.num_layers for stage in layout.replicas[0].stages)
        cut = best_cut(cut_times(layout, given_rates, schedule)[0], num_layers, sizes)
        cuts = every_cut(num_layers, num_stages)
        layouts = [Layout(num_layers, layout.num_microbatches, (with_layers(layout.replicas[0], one),)) for one in cuts]
        best_s = min(found.pipeline_s[0] for found in price_many(layouts, given_rates, schedule))
        own_s = price(layouts[cuts.index(cut)], given_rates, schedule).pipeline_s[0]
        assert own_s == pytest.approx(best_s, rel=1e-9), (slow, cut)


def test_the_search_of_long_pipelines_comes_near_brute_force() -> None:
    """Beyond `MOST_CUTS` the cut is searched for. All cuts of 5 stages are still countable: never 3 % off, and 0.3 % on average."""
    rng = np.random.default_rng(13)
    gaps = []
    for _ in range(25):
        slow = {int(r): float(rng.uniform(1, 3)) for r in rng.integers(0, 5, 2)}
        layout = Layout.uniform(tp=1, pp=5, dp=1, num_layers=16, num_microbatches=int(rng.integers(2, 25)))
        times = cut_times(layout, rates(ranks_per_node=1, slowdown=slow, head_layers=1.0), "1f1b")[0]
        sizes = tuple(stage.num_layers for stage in layout.replicas[0].stages)
        borders = itertools.combinations(range(1, 16), 4)
        cuts = np.array([np.diff([0, *inner, 16]) for inner in borders], dtype=np.intp)
        assert len(cuts) > MOST_CUTS
        found = np.array([best_cut(times, 16, sizes)], dtype=np.intp)
        order = times.order()
        gaps.append(float(times.seconds(order, found)[0] / times.seconds(order, cuts).min()) - 1)
    assert max(gaps) < 0.03 and np.mean(gaps) < 0.003


def test_the_example_of_resihp() -> None:
    """(4, 4, 4) -> (5, 2, 5) when the middle one of three stages has half the speed; the other replica keeps its cut."""
    layout = Layout.uniform(tp=1, pp=3, dp=2, num_layers=12, num_microbatches=16)
    plan = propose_layers(assess(layout, rates(ranks_per_node=1, slowdown={1: 2.0}), causes=("compute",)))[0]
    assert [[stage.num_layers for stage in replica.stages] for replica in plan.layout.replicas] == [[5, 2, 5], [4, 4, 4]]
    assert "replica 0: layers 4/4/4 -> 5/2/5" in plan.reason
    assert plan.bytes_moved == 2e9


def test_interleaved_stages_are_cut_too() -> None:
    uniform = Layout.uniform(tp=1, pp=2, dp=1, num_layers=8, num_microbatches=8)
    replica = uniform.replicas[0]
    dealt = [(LayerRange(0, 2), LayerRange(4, 6)), (LayerRange(2, 4), LayerRange(6, 8))]
    stages = tuple(type(stage)(stage.ranks, stage.shares, chunks) for stage, chunks in zip(replica.stages, dealt, strict=True))
    layout = Layout(8, 8, (type(replica)(stages, 8),))
    plan = propose_layers(assess(layout, rates(ranks_per_node=1, slowdown={1: 2.0}), causes=("compute",), schedule="interleaved"))[0]
    held = [stage.num_layers for stage in plan.layout.replicas[0].stages]
    assert held[0] > held[1] and sum(held) == 8 and all(len(stage.chunks) == 2 for stage in plan.layout.replicas[0].stages)
