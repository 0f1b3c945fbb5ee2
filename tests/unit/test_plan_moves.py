"""What a change of layout moves, against counting single atoms of single layers."""

from __future__ import annotations

from math import lcm

import numpy as np
import pytest
from planning import random_situation, rates

from lurcher.layout import Layout, Replica
from lurcher.model.rates import Rates
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.edit import exchanged, with_layers
from lurcher.plan.layers import propose_layers
from lurcher.plan.moves import SwitchCosts, state_moves
from lurcher.plan.shares import propose_shares
from lurcher.plan.standby import propose_standby

COSTS = SwitchCosts(border_s=0.1, regroup_s=1.0, checkpoint_bytes_per_s=1e9)


def held(layout: Layout, num_parts: int) -> dict[int, set[tuple[int, int]]]:
    """The (layer, part) of every rank, each layer being cut into `num_parts` equal parts."""
    found: dict[int, set[tuple[int, int]]] = {}
    for _, _, stage in layout.stages():
        first = 0
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            width = share * num_parts // sum(stage.shares)
            found[rank] = {(layer, part) for chunk in stage.chunks for layer in range(chunk.first, chunk.end) for part in range(first, first + width)}
            first += width
    return found


def counted_bytes(before: Layout, after: Layout, given: Rates) -> tuple[float, float]:
    """Bytes that ranks lack, and those of them that no living rank has."""
    parts = lcm(*(sum(stage.shares) for layout in (before, after) for _, _, stage in layout.stages() if stage.ranks))
    had, needs = held(before, parts), held(after, parts)
    alive = set().union(*(atoms for rank, atoms in had.items() if rank not in given.dead))
    lacking = [(layer, part) for rank, atoms in needs.items() for layer, part in atoms - had.get(rank, set())]

    def size(layer: int) -> float:
        return given.layer_bytes / parts * (1 + given.embed_layers * (layer == 0) + given.head_layers * (layer == before.num_layers - 1))

    return sum(size(layer) for layer, _ in lacking), sum(size(layer) for layer, part in lacking if (layer, part) not in alive)


def test_bytes_equal_a_count_of_atoms() -> None:
    rng = np.random.default_rng(31)
    num_plans = 0
    for _ in range(60):
        situation = random_situation(rng, dead=bool(rng.integers(2)))
        for propose in (propose_layers, propose_shares, propose_standby, propose_without_dead):
            for plan in propose(situation):
                num_plans += 1
                moves = state_moves(situation.layout, plan.layout, situation.rates, COSTS)
                moved, lost = counted_bytes(situation.layout, plan.layout, situation.rates)
                assert moves.bytes_moved == pytest.approx(moved, abs=2) and moves.bytes_lost == pytest.approx(lost, abs=2)
    assert num_plans > 60


def test_a_new_split_moves_nothing_and_needs_no_groups() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
    assert state_moves(layout, layout.with_split((3, 5)), rates(), COSTS) == (0, 0, 0.1)


def test_the_pause_is_the_busiest_ranks_transfer() -> None:
    """Two layers of 1 GB go from rank 1 to rank 0 on the same node: 2 GB at 1 GB/s; at 4 times slower links, four times as long."""
    layout = Layout.uniform(tp=1, pp=2, dp=1, num_layers=8, num_microbatches=4)
    after = Layout(8, 4, (with_layers(layout.replicas[0], (6, 2)),), generation=1)
    assert state_moves(layout, after, rates(node_bytes_per_s=1e9), COSTS) == (2_000_000_000, 0, 1.0 + 2.0)
    assert state_moves(layout, after, rates(link_bytes_per_s=1e9, ranks_per_node=1), COSTS).pause_s == 1.0 + 2.0
    assert state_moves(layout, exchanged(layout, {0: 1, 1: 0}), rates(node_bytes_per_s=1e9), COSTS).bytes_moved == 8_000_000_000


def test_state_without_a_living_owner_comes_from_the_checkpoint() -> None:
    one = Layout.uniform(tp=1, pp=2, dp=1, num_layers=4, num_microbatches=4)
    layout = Layout(4, 4, one.replicas, standby=(2,))
    stages = (one.replicas[0].stages[0], type(one.replicas[0].stages[1])((2,), (1,), one.replicas[0].stages[1].chunks))
    moves = state_moves(layout, Layout(4, 4, (Replica(stages, 4),), standby=(1,)), rates(dead=(1,)), COSTS)
    assert moves == (2_000_000_000, 2_000_000_000, 1.0 + 4.0)  # all four layers are read again, for one common cut
