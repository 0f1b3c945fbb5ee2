"""Emulated links: what transfers take, against a ring simulated step by step; whom a fault hits; who waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.clock import FakeClock
from lurcher.config import JobConfig, LayoutSection, PaceSection, config_from_toml_text
from lurcher.errors import UserError
from lurcher.faults import Fault, parse_fault
from lurcher.model.link_pace import LinkPace
from lurcher.runtime.wires import EmulatedWires, NoWires

TWO_A_NODE = LayoutSection(ranks_per_node=2)
PACE = PaceSection(link_us=500.0, link_mb_per_s=10.0)
MESSAGE = 100_000
HEALTHY_S = 500e-6 + MESSAGE / 10e6


def links(*faults: str, pace: PaceSection = PACE, grid: LayoutSection = TWO_A_NODE) -> LinkPace:
    return LinkPace(pace, grid, [parse_fault(text) for text in faults])


def test_only_what_crosses_nodes_takes_time() -> None:
    pace = links()
    assert pace.hop_s(0, 1, MESSAGE, 0, 0.0) == 0.0
    assert pace.hop_s(0, 2, MESSAGE, 0, 0.0) == pace.hop_s(3, 1, MESSAGE, 0, 0.0) == pytest.approx(HEALTHY_S)
    assert pace.ring_s((0, 1), MESSAGE, 0, 0.0) == pace.ring_s((0,), MESSAGE, 0, 0.0) == 0.0


def test_a_fault_hits_the_link_between_two_nodes_or_within_one_the_two_ranks() -> None:
    pace = links("slow link 1-2 x3 from 5 to 9", "slow link 4-5 x3 from 5 to 9")
    assert pace.hop_s(0, 3, MESSAGE, 6, 0.0) == pytest.approx(3 * HEALTHY_S), "other ranks of the same two nodes"
    assert pace.hop_s(0, 4, MESSAGE, 6, 0.0) == pytest.approx(HEALTHY_S), "another node"
    assert pace.hop_s(0, 3, MESSAGE, 9, 0.0) == pytest.approx(HEALTHY_S), "it is over"
    assert pace.hop_s(5, 4, MESSAGE, 6, 0.0) == pytest.approx(2 * HEALTHY_S) and pace.hop_s(0, 1, MESSAGE, 6, 0.0) == 0.0


def test_ramps_and_seconds_count_as_for_ranks() -> None:
    pace = links("ramp link 0-2 x5 from 0s for 10s")
    assert pace.hop_s(0, 2, 0, 0, 5.0) == pytest.approx(500e-6 * 3.0)


def simulated_ring_s(edge_s: list[float]) -> float:
    """Each rank sends on what it got in the step before, once its own link is free again."""
    size = len(edge_s)
    done = [0.0] * size
    for _ in range(2 * (size - 1)):
        done = [max(done[edge], done[edge - 1]) + edge_s[edge] for edge in range(size)]
    return max(done)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(8)), st.integers(2, 8), st.integers(1, 4), st.floats(1.0, 6.0), st.integers(1, 10**6))
def test_a_sum_takes_what_a_ring_takes_step_by_step(order: list[int], size: int, per_node: int, factor: float, num_bytes: int) -> None:
    ring = order[:size]
    pace = links(f"slow link 0-7 x{factor} from 0", grid=LayoutSection(ranks_per_node=per_node))
    edge_s = [pace.hop_s(a, b, num_bytes / size, 0, 0.0) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    assert pace.ring_s(ring, num_bytes, 0, 0.0) == pytest.approx(simulated_ring_s(edge_s))


def test_a_sum_over_two_ranks_passes_its_bytes_once_and_waits_for_two_latencies() -> None:
    assert links().ring_s((0, 2), MESSAGE, 0, 0.0) == pytest.approx(2 * 500e-6 + MESSAGE / 10e6)


@pytest.mark.parametrize(
    ("act", "expected_s"),
    [
        (lambda wires: wires.hop(0, 2, MESSAGE, 3), HEALTHY_S),
        (lambda wires: wires.ring((0, 2), MESSAGE, 3), HEALTHY_S + 500e-6),
        (lambda wires: wires.hop(0, 1, MESSAGE, 3), 0.0),
    ],
)
def test_wires_wait_as_long_as_the_link_takes_and_say_so(act: Callable[[EmulatedWires], int], expected_s: float) -> None:
    clock = FakeClock()
    assert act(EmulatedWires(links(), clock)) == clock.now_ns() == pytest.approx(expected_s * 1e9, abs=2)


def test_without_emulation_nothing_waits() -> None:
    assert NoWires().hop(0, 2, MESSAGE, 0) == NoWires().ring((0, 2), MESSAGE, 0) == 0
    assert not JobConfig().pace.has_links and PACE.has_links
    assert not PaceSection(kind="none", link_us=5.0).has_links


def test_links_without_nodes_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"pace.link_us is 200, but layout.ranks_per_node is 0.*set layout.ranks_per_node") as error:
        config_from_toml_text("[pace]\nlink_us = 200.0\n")
    assert "\n" not in str(error.value)
    config = config_from_toml_text("[layout]\nranks_per_node = 4\n[pace]\nlink_us = 200.0\n")
    assert [config.layout.node(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    assert {JobConfig().layout.node(rank) for rank in range(8)} == {0}


def test_every_kind_of_link_fault_is_known() -> None:
    for text in ("slow link 0-2 x2 from 5", "flap link 0-2 x2 every 4 from 5", "ramp link 0-2 x2 from 0 to 6"):
        fault: Fault = parse_fault(text)
        assert LinkPace(PACE, TWO_A_NODE, [fault]).hop_s(0, 2, 0, 5, 0.0) > 500e-6, text
