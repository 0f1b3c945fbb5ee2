"""The link benchmark over real sockets: bytes pass, an emulated link takes its time on top, and whoever does not answer holds nobody up. Ranks are threads."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, Store

from lurcher.clock import SystemClock
from lurcher.config import LayoutSection, PaceSection
from lurcher.faults import parse_fault
from lurcher.model.link_pace import LinkPace
from lurcher.records import BenchResult
from lurcher.runtime.link_bench import bench_links
from lurcher.runtime.links import HOP, Links
from lurcher.runtime.wires import EmulatedWires, NoWires, Wires
from lurcher.validate.bench_link import MESSAGE_BYTES, NUM_REPEATS
from lurcher.validate.rounds import Round, rounds_of

_WORD = torch.zeros(1, dtype=torch.uint8)
WAIT_S = 1.0
RING = rounds_of([(0, 1), (1, 2), (2, 3), (0, 3)])


def connect(rank: int, peers: Collection[int], store: Store) -> Links:
    return Links(rank, peers, store, WAIT_S, WAIT_S)


def on_ranks(ranks: Collection[int], rounds: tuple[Round, ...], wires: Wires, store: Store | None = None) -> dict[int, tuple[BenchResult, ...]]:
    """What each of these ranks measures."""
    store = store or HashStore()

    def run(rank: int) -> tuple[BenchResult, ...]:
        return bench_links(rank, rounds, lambda peers: connect(rank, peers, store), wires, 7)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return dict(zip(ranks, pool.map(run, ranks), strict=True))


def test_each_link_is_measured_once_by_its_lower_rank() -> None:
    found = on_ranks(range(4), RING, NoWires())
    assert {rank: [result.component.ranks for result in results] for rank, results in found.items()} == {
        0: [(0, 1), (0, 3)],
        1: [(1, 2)],
        2: [(2, 3)],
        3: [],
    }
    for results in found.values():
        for result in results:
            assert (result.name, result.unit, result.num_repeats) == ("link", "s", NUM_REPEATS) and 0 < result.measured < WAIT_S


def test_an_emulated_link_takes_its_time_on_top_and_a_fault_stretches_it() -> None:
    pace = LinkPace(PaceSection(link_us=1000.0, link_mb_per_s=20.0), LayoutSection(ranks_per_node=1), [parse_fault("slow link 1-2 x4 from 5 to 9")])
    results = on_ranks(range(4), RING, EmulatedWires(pace, SystemClock()))
    measured = {result.component.ranks: result.measured for found in results.values() for result in found}
    link_s = 2e-3 + MESSAGE_BYTES / 20e6
    assert min(measured.values()) >= 0.99 * link_s
    assert measured[1, 2] == max(measured.values()) and measured[1, 2] >= 3.9 * link_s


@pytest.mark.timeout(30)
def test_a_rank_that_does_not_come_costs_the_others_no_more_than_their_patience() -> None:
    begin_s = time.monotonic()
    assert on_ranks((0, 1), (((0, 1), (2, 3)), ((1, 2),)), NoWires())[1] == ()
    assert time.monotonic() - begin_s < 4 * WAIT_S


@pytest.mark.timeout(30)
def test_what_was_measured_before_a_rank_fell_silent_is_kept() -> None:
    store = HashStore()

    def silent() -> None:
        links = connect(2, [0], store)
        links.send(0, HOP, 0, links.receive(0, HOP, 0, _WORD))
        links.close()

    def whole(rank: int) -> tuple[BenchResult, ...]:
        return bench_links(rank, (((0, 1),), ((0, 2),)), lambda peers: connect(rank, peers, store), NoWires(), 0)

    with ThreadPoolExecutor(3) as pool:
        first, _, third = pool.submit(whole, 0), pool.submit(whole, 1), pool.submit(silent)
        third.result()
        assert [result.component.ranks for result in first.result()] == [(0, 1)]
