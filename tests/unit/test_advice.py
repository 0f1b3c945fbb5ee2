"""What the engine can carry out of what the planner proposes."""

from __future__ import annotations

from lurcher.control.advice import is_adoptable
from lurcher.layout import LayerRange, Layout, Replica, Route, Stage


def test_routes_and_stages_without_ranks_can_be_carried_out_several_chunks_a_stage_cannot() -> None:
    home = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=2)
    stages = (home.replicas[1].stages[0], Stage((), (), (LayerRange(2, 4),)))
    dead = Layout(4, 2, (home.replicas[0], Replica(stages, 1)), (3,), (Route(1, LayerRange(2, 4), 0, 1),))
    assert is_adoptable(home) and is_adoptable(dead)
    dealt = tuple(Stage((s,), (1,), (LayerRange(s, s + 1), LayerRange(s + 2, s + 3))) for s in range(2))
    assert not is_adoptable(Layout(4, 2, (Replica(dealt, 2),)))
