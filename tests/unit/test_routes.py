"""Coupled replicas: the compiled walk of their texts against the event-driven simulation, and the texts that the list schedule makes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from event_walk import random_texts, simulate, split_word
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import random_layout

from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Route
from lurcher.model.critical_path import finish_times, makespans
from lurcher.model.price import price, routed_texts
from lurcher.model.rates import Rates
from lurcher.model.routes import Coupled, compile_routed, coupled_replicas
from lurcher.model.stage_table import stage_table

RATES = Rates(forward_s=1, backward_s=2)


def coupled_of(layout: Layout) -> tuple[Coupled, ...]:
    return coupled_replicas(layout, stage_table(layout, RATES))


def paths_of(coupled: Coupled) -> dict[int, list[tuple[int, int]]]:
    return {
        m: [(coupled.pieces[visit.piece].stage, visit.number) for visit in path] for m, path in zip(coupled.microbatches, coupled.paths, strict=True)
    }


def test_the_walk_of_routed_texts_equals_the_event_driven_simulation() -> None:
    """150 random texts on random routes; every chunk and micro-batch has its own time, every border its own hop, in several lanes."""
    rng = random.Random(4)
    cases = 0
    while cases < 150:
        for coupled in coupled_of(random_layout(rng, routes=True, num_chunks=rng.choice([1, 1, 2]))):
            cases += 1
            split = rng.random() < 0.4
            paths = paths_of(coupled)
            drawn = random_texts(rng, coupled.stages, paths, split)
            order = compile_routed(coupled, [drawn[stage] for stage in coupled.stages])
            values = np.random.default_rng(cases)
            times = values.uniform(0.1, 3, (3, 2, len(coupled.pieces), len(coupled.microbatches)))  # kinds, lanes
            hops = values.uniform(0, 1, (2, len(coupled.borders)))
            timeline = finish_times(order, times[0], times[1], hops, times[2] if split else None)
            for lane in range(2):

                def seconds(stage, word, lane=lane, times=times, coupled=coupled):  # type: ignore[no-untyped-def]
                    kind, m, number = split_word(word)
                    i = coupled.microbatches.index(m)
                    visit = next(v for v in coupled.paths[i] if coupled.pieces[v.piece].stage == stage and v.number == number)
                    return times["FBW".index(kind), lane, visit.piece, i]

                def hop(m, k, lane=lane, hops=hops, coupled=coupled):  # type: ignore[no-untyped-def]
                    border = coupled.paths[coupled.microbatches.index(m)][k + 1].border
                    return hops[lane, border] if border >= 0 else 0.0

                truth = simulate(drawn, paths, seconds, hop)  # type: ignore[arg-type]
                assert sorted(timeline.ends_s[lane]) == pytest.approx(sorted(truth.values()))
                assert timeline.makespan_s[lane] == pytest.approx(max(truth.values()))


def test_the_list_schedules_texts_walk_to_the_price() -> None:
    rng = random.Random(9)
    for _ in range(40):
        layout = random_layout(rng, routes=True)
        texts = routed_texts(layout, RATES)
        for coupled in coupled_of(layout):
            order = compile_routed(coupled, [texts[coupled.place(stage)] for stage in coupled.stages])
            stages = [layout.replicas[coupled.place(p.stage)[0]].stages[coupled.place(p.stage)[1]] for p in coupled.pieces]
            layers = np.array([(p.end - p.first) * max(s.shares) / sum(s.shares) for p, s in zip(coupled.pieces, stages, strict=True)])[:, None]
            found = price(layout, RATES).pipeline_s
            assert max(found[d] for d in coupled.replicas) == pytest.approx(float(makespans(order, layers, 2 * layers)))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
def test_paths_follow_the_layouts_own_word(seed: int) -> None:
    """Every layer of every micro-batch is run once, in order, by the stage that `Layout.executor` names."""
    layout = random_layout(random.Random(seed), routes=True)
    for coupled in coupled_of(layout):
        for m, path in zip(coupled.microbatches, coupled.paths, strict=True):
            pieces = [coupled.pieces[visit.piece] for visit in path]
            assert [layer for piece in pieces for layer in range(piece.first, piece.end)] == list(range(layout.num_layers))
            for piece in pieces:
                assert all(layout.executor(m, layer) == coupled.place(piece.stage) for layer in range(piece.first, piece.end))


def test_only_coupled_replicas_are_joined() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=5, num_layers=4, num_microbatches=10)
    routes = (Route(0, LayerRange(0, 2), 2, 0), Route(8, LayerRange(2, 4), 1, 1))
    assert [c.replicas for c in coupled_of(Layout(4, 10, layout.replicas, (), routes))] == [(0, 2), (1, 4)]
    assert coupled_of(layout) == ()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("F0 B0", "F0 B0 F1 B1", "F1 B1", ""), "F0 is not on the path of micro-batch 0"),
        (("F0 B0", "", "F1 B1", "F0 B0 F1"), "runs B1 of replica 1 stage 1 0 times"),
        (("F0 B0", "", "F1 B1", "F0 B0 F1 B1 B1"), "runs B1 of replica 1 stage 1 2 times"),
        (("F0 B0", "", "F1 B1", "F0 F1 B1 W0 B0 W1"), "runs W0 of replica 0 stage 0 0 times"),
        (("B0 F0", "", "F1 B1", "F0 B0 F1 B1"), "B0 of replica 0 stage 0 waits for B0 of replica 1 stage 1"),
    ],
)
def test_texts_that_do_not_fit_the_routes_name_the_action(texts: tuple[str, ...], message: str) -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=2)
    (coupled,) = coupled_of(Layout(4, 2, layout.replicas, (), (Route(0, LayerRange(2, 4), 1, 1),)))
    with pytest.raises(UserError, match=message):
        compile_routed(coupled, texts)
    compile_routed(coupled, ("F0 B0", "", "F1 B1", "F0 B0 F1 B1"))
