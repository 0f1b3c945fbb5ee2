"""What the planner's tests share: random jobs with faults, and checks of a layout that do not use the layout's own."""

from __future__ import annotations

import math

import numpy as np

from lurcher.layout import Layout
from lurcher.model.rates import LinkRate, Rates
from lurcher.plan.situation import Situation, assess
from lurcher.records import Cause, Plan

FORWARD_S, BACKWARD_S = 0.01, 0.02


def rates(**changed: object) -> Rates:
    """A plain model: layers of 10 + 20 ms and 1 GB, fast links; two ranks a node."""
    known: dict[str, object] = {
        "forward_s": FORWARD_S,
        "backward_s": BACKWARD_S,
        "layer_bytes": 1e9,
        "link_bytes_per_s": 25e9,
        "node_bytes_per_s": 3e11,
        "ranks_per_node": 2,
    }
    return Rates(**{**known, **changed})  # type: ignore[arg-type]


def random_situation(rng: np.random.Generator, *, dead: bool = False) -> Situation:
    """A small job with slow ranks, slow links, and perhaps dead ranks and standby ones; all causes allowed."""
    tp, pp, dp = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    world = tp * pp * dp
    plain = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=pp * int(rng.integers(1, 4)), num_microbatches=dp * int(rng.integers(1, 7)))
    standby = tuple(range(world, world + int(rng.choice([0, 0, tp, 2 * tp]))))
    layout = Layout(plain.num_layers, plain.num_microbatches, plain.replicas, standby)
    everyone = world + len(standby)
    slow = {int(r): float(rng.uniform(1.0, 4.0)) for r in rng.choice(everyone, min(everyone, int(rng.integers(0, 4))), replace=False)}
    gone = tuple(sorted(int(r) for r in rng.choice(world, min(world - 1, int(rng.integers(1, tp + 2))), replace=False))) if dead else ()
    nodes = -(-everyone // tp)
    links = tuple(
        LinkRate(*sorted(int(n) for n in rng.choice(nodes, 2, replace=False)), float(rng.uniform(1.5, 8.0)))
        for _ in range(int(rng.integers(0, 3)) if nodes > 1 else 0)
    )
    found = rates(
        ranks_per_node=tp,
        slowdown=slow,
        dead=gone,
        links=links,
        tp_efficiency=(1.0, 0.98, 0.97, 0.96),
        head_layers=float(rng.choice([0.0, 1.0])),
        launch_s=float(rng.choice([0.0, 0.001])),
        hop_bytes=float(rng.choice([0.0, 5e7])),
        sync_bytes_per_layer=float(rng.choice([0.0, 1e9])),
        optimizer_layer_s=float(rng.choice([0.0, 0.005])),
    )
    causes: tuple[Cause, ...] = ("compute", "communication")
    return assess(layout, found, causes=causes, schedule=str(rng.choice(["1f1b", "gpipe", "zb_h1"])), num_atoms=4)


def assert_sound(plan: Plan, situation: Situation) -> None:
    """Same ranks, none twice, no dead one at work; each (micro-batch, layer) on exactly one living stage; better than now."""
    before, after = situation.layout, plan.layout
    assert sorted((*after.ranks, *after.standby)) == sorted((*before.ranks, *before.standby))
    assert after.generation == before.generation + 1
    assert after.num_microbatches == sum(after.split) == before.num_microbatches and after.num_layers == before.num_layers
    restarted = plan.actions[0].kind == "restart"
    assert restarted or set(after.ranks).isdisjoint(situation.rates.dead)
    for m in range(after.num_microbatches):
        for layer in range(after.num_layers):
            d, s = after.executor(m, layer)
            stage = after.replicas[d].stages[s]
            assert stage.ranks and any(layer in chunk for chunk in stage.chunks)
    assert plan.predicted_s < situation.present_s == plan.present_s
    assert math.isfinite(plan.predicted_s) and plan.pause_s > 0 and plan.bytes_moved >= 0 and plan.bound_s <= plan.predicted_s
    assert plan.actions and all(action.text for action in plan.actions) and f"{plan.predicted_s:.3f}" in plan.reason
