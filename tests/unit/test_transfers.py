"""How long transfers take: events to rows, rows to histories, histories to rates."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.unit.paper_job import drive
from tests.unit.paper_links import HOP_BYTES, PaperLinks

from lurcher.control.link_rates import links_s
from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.records import EVENT, GROUP_KINDS, TRANSFER, Op
from lurcher.track.transfers import reduce_transfers

GRID = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
DATA = {group.ranks: group.id for group in GRID.groups() if group.kind == "dp"}
MS = 1_000_000


def event(rank: int, op: Op, took_ms: float, *, group: int, seq: int = 0, peer: int = -1, num_bytes: int = 0) -> tuple[int, ...]:
    return (rank, group, op, 4, peer, seq, num_bytes, 0, round(took_ms * MS), 0)


def test_of_a_sum_the_last_arriver_counts_and_of_a_pair_whoever_did_not_wait() -> None:
    events = np.array(
        [
            event(0, Op.ALL_REDUCE, 90.0, group=DATA[0, 2], num_bytes=1000),
            event(2, Op.ALL_REDUCE, 40.0, group=DATA[0, 2], num_bytes=1000),
            event(0, Op.RECV, 30.0, group=3, peer=1, num_bytes=64),
            event(0, Op.RECV, 20.0, group=3, peer=1, seq=2, num_bytes=64),
            event(1, Op.RECV, 2.0, group=3, peer=0, seq=1, num_bytes=64),
            event(1, Op.RECV, 9.0, group=3, peer=0, seq=3, num_bytes=64),
            event(3, Op.ALL_REDUCE, 1.0, group=0, num_bytes=24),
            event(3, Op.SEND, 1.0, group=3, peer=2, num_bytes=64),
        ],
        EVENT,
    )
    expected = [(GROUP_KINDS.index("dp"), DATA[0, 2], -1, 0.040, 1000, 1), (GROUP_KINDS.index("pp"), 0, 1, 0.002, 64, 2)]
    assert reduce_transfers(events, GRID).tolist() == [pytest.approx(row) for row in expected]
    assert len(reduce_transfers(events[:0], GRID)) == 0


def test_calls_of_a_tensor_group_are_averaged() -> None:
    layout = Layout.uniform(tp=2, pp=1, dp=1, num_layers=2, num_microbatches=1)
    tensor = next(group.id for group in layout.groups() if group.kind == "tp")
    took = {0: (5.0, 3.0), 1: (1.0, 4.0)}
    events = np.array(
        [event(r, Op.ALL_REDUCE, ms, group=tensor, seq=seq, num_bytes=8) for r, times in took.items() for seq, ms in enumerate(times)], EVENT
    )
    (row,) = reduce_transfers(events, layout)
    assert (row["seconds"], row["count"], row["num_bytes"]) == (pytest.approx(0.002), 2, 8)


@pytest.fixture(scope="module")
def healthy() -> PaperLinks:
    return PaperLinks(Layout.uniform(tp=1, pp=2, dp=3, num_layers=4, num_microbatches=24))


def test_rates_with_links_price_the_healthy_layout_as_before_and_slow_links_as_they_are(healthy: PaperLinks) -> None:
    coordinator, _ = drive(healthy, 40, nodes=healthy.nodes)
    view, layout = coordinator.view, healthy.layout
    rates = view.rates({})
    assert price(layout, rates).iteration_s == pytest.approx(view.mean_expected_s(layout, {}), rel=0.02)
    assert rates.hop_bytes == HOP_BYTES and rates.places == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2} and rates.node_bytes_per_s == 0
    assert rates.link_bytes_per_s == pytest.approx(5e6, rel=0.05)
    sum_s = 4 / 3 * 366_000 / 5e6
    assert links_s(layout, rates, "1f1b") == pytest.approx(sum_s, rel=0.05)
    link = healthy.nodes.between(0, 2)
    assert links_s(layout, view.rates({}, {link: 4.0}), "1f1b") == pytest.approx(4 * sum_s, rel=0.05)
    expected_s = view.mean_expected_s(layout, {}, {link: 4.0}) - view.mean_expected_s(layout, {})
    assert expected_s == pytest.approx(3 * sum_s, rel=0.05)


def test_a_group_in_another_order_has_no_history(healthy: PaperLinks) -> None:
    coordinator, _ = drive(healthy, 30, nodes=healthy.nodes)
    transfers = coordinator.view.transfers
    assert transfers is not None and len(transfers.flows(25, 1.0)) == 5
    first, second, third = healthy.layout.replicas
    turned = msgspec.structs.replace(healthy.layout, replicas=(first, third, second), generation=1)
    transfers.add(healthy.step(30, turned), {}, settled=False)
    assert {flow.kind for flow in transfers.flows(30, 1.0)} == {"pp"}


def test_without_nodes_transfers_change_nothing(healthy: PaperLinks) -> None:
    """Rows of transfers are not even looked at: every decision is the same."""
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=16)
    runs = []
    for strip in (False, True):
        job = PaperLinks(layout, faults=[(1, 1.8, 20, 45)], seed=3)
        if strip:
            whole = job.step
            job.step = lambda *a, whole=whole: msgspec.structs.replace(whole(*a), transfers=np.zeros(0, TRANSFER))  # type: ignore[method-assign]
        runs.append([d for out in drive(job, 70)[1] for d in out.decisions])
    assert runs[0] == runs[1] and any(d.kind == "reconfiguration" for d in runs[0])
