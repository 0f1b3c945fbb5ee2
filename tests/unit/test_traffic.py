"""Transfers, by hand: which link counts, for whom, and how much of it."""

from __future__ import annotations

import numpy as np
import pytest

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.price import price
from lurcher.model.rates import LinkRate, Rates
from lurcher.model.stage_table import stage_table
from lurcher.model.traffic import network, sync_s


def rates(**more: object) -> Rates:
    return Rates(forward_s=1, backward_s=2, link_bytes_per_s=10, node_bytes_per_s=100, ranks_per_node=4, **more)  # type: ignore[arg-type]


def seconds(r: Rates, a: int, b: int) -> float:
    return float(network(r).seconds_per_byte(np.array([a]), np.array([b]))[0])


def test_inside_a_node_between_nodes_and_to_itself() -> None:
    assert [seconds(rates(), 0, b) for b in (0, 3, 4)] == [0.0, 0.01, 0.1]
    assert seconds(rates(places={3: 1, 4: 0}), 0, 3) == 0.1 and seconds(rates(places={4: 0}), 0, 4) == 0.01
    assert seconds(Rates(forward_s=1, backward_s=2), 0, 99) == 0.0  # not counted


@pytest.mark.parametrize(
    ("link", "slow"),
    [
        (LinkRate(0, 1, 3.0), {(0, 4), (3, 7), (5, 2)}),
        (LinkRate(1, 0, 3.0), {(0, 4), (3, 7), (5, 2)}),
        (LinkRate(0, -1, 3.0), {(0, 4), (0, 8), (3, 7), (5, 2)}),
        (LinkRate(0, 0, 3.0), {(0, 1)}),
        (LinkRate(4, 0, 3.0, "rank"), {(0, 4)}),
        (LinkRate(0, -1, 3.0, "rank"), {(0, 1), (0, 4), (0, 8)}),
    ],
)
def test_a_slow_link_slows_what_uses_it(link: LinkRate, slow: set[tuple[int, int]]) -> None:
    for a, b in ((0, 1), (0, 4), (0, 8), (3, 7), (5, 2), (4, 8)):
        assert seconds(rates(links=(link,)), a, b) == pytest.approx(seconds(rates(), a, b) * (3.0 if (a, b) in slow else 1.0))


def test_the_slowest_of_several_counts() -> None:
    links = (LinkRate(0, 1, 2.0), LinkRate(0, 1, 5.0), LinkRate(1, -1, 3.0))
    assert seconds(rates(links=links), 0, 4) == 0.5 and seconds(rates(links=links), 4, 8) == pytest.approx(0.3)


def test_the_all_reduce_of_gradients_waits_for_the_slowest_link_of_its_ring() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=3, num_layers=6, num_microbatches=3)  # one replica a node
    r = rates(sync_bytes_per_layer=8.0)
    # 3 layers of 8 bytes, half of them on each rank, 2 * 2/3 of that over a link of 10 bytes/s.
    assert price(layout, r).sync_s == pytest.approx(3 * 8 / 2 * 4 / 3 / 10)
    slow = rates(sync_bytes_per_layer=8.0, links=(LinkRate(8, 0, 5.0, "rank"),))
    found = sync_s(network(slow), stage_table(layout, slow))
    assert found == pytest.approx([8.0, 1.6, 8.0, 1.6, 8.0, 1.6])
    two = Layout(6, 3, (*layout.replicas[:2], Replica(layout.replicas[2].stages, 1)))
    assert price(two, slow).sync_s == pytest.approx(8.0)


def test_replicas_cut_differently_share_rings_layer_by_layer() -> None:
    def replica(first_rank: int, cut: int) -> Replica:
        parts = (LayerRange(0, cut), LayerRange(cut, 6))
        return Replica(tuple(Stage((first_rank + s,), (1,), (part,)) for s, part in enumerate(parts)), 1)

    layout = Layout(6, 2, (replica(0, 2), replica(4, 4)))
    slow = rates(sync_bytes_per_layer=10.0, links=(LinkRate(1, 4, 7.0, "rank"),))  # ranks 1 and 4 share layers 2 and 3
    found = sync_s(network(slow), stage_table(layout, slow))
    assert found == pytest.approx([2.0, 2 * 7 + 2, 2 + 2 * 7, 2.0])


def test_a_swap_of_nodes_moves_the_slow_link_from_gradients_to_activations() -> None:
    """GREYHOUND S3: gradients are many, activations few. Two replicas of two stages on four nodes; the link of nodes 0 and 2 is slow."""

    def layout(nodes: tuple[int, ...]) -> Layout:
        a, b, c, d = (Stage((node,), (1,), (LayerRange(2 * (i % 2), 2 * (i % 2) + 2),)) for i, node in enumerate(nodes))
        return Layout(4, 16, (Replica((a, b), 8), Replica((c, d), 8)))

    r = Rates(
        forward_s=0.01,
        backward_s=0.02,
        hop_bytes=1.0,
        sync_bytes_per_layer=100.0,
        link_bytes_per_s=1000,
        ranks_per_node=1,
        links=(LinkRate(0, 2, 4.0),),
    )
    before, after = price(layout((0, 1, 2, 3)), r), price(layout((0, 2, 1, 3)), r)
    assert before.sync_s == pytest.approx(0.8) and after.sync_s == pytest.approx(0.2)
    assert after.iteration_s < before.iteration_s - 0.5
