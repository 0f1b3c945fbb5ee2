"""Who sends what to whom between stages: every byte once where the degrees differ, a copy a rank where they do not."""

from __future__ import annotations

import pytest

from lurcher.layout import LayerRange, Layout, Route
from lurcher.runtime.hops import Part, all_partners, held_apart, partners, parts

SIZES = [(a, b) for a in range(1, 9) for b in range(1, 9)]


@pytest.mark.parametrize(("a", "b"), SIZES)
def test_between_unlike_stages_every_element_crosses_once_and_each_receiver_knows_what_its_mates_hold(a: int, b: int) -> None:
    senders, receivers, num_elements = tuple(range(10, 10 + a)), tuple(range(30, 30 + b)), 50
    found = parts(senders, receivers, num_elements)
    assert {part.source for part in found} <= set(senders) and {part.target for part in found} == set(receivers)
    assert len({part[:2] for part in found}) == len(found) == max(a, b)
    held = held_apart(found, senders, receivers)
    if a == b:
        assert found == tuple(Part(one, other, 0, num_elements) for one, other in zip(senders, receivers, strict=True)) and held == {}
        return
    assert [element for part in found for element in range(part.start, part.end)] == list(range(num_elements))
    assert {part.source for part in found} == set(senders)  # no link is left idle
    assert (held == {}) == (b == 1)
    for rank, (start, end) in held.items():
        assert [e for part in found if part.target == rank for e in range(part.start, part.end)] == list(range(start, end))
    assert not held or [e for start, end in held.values() for e in range(start, end)] == list(range(num_elements))


@pytest.mark.parametrize(("a", "b"), SIZES)
def test_the_way_back_runs_between_the_same_ranks(a: int, b: int) -> None:
    left, right = tuple(range(a)), tuple(range(10, 10 + b))
    assert {part[:2] for part in parts(left, right, 64)} == {part[1::-1] for part in parts(right, left, 64)}


def test_partners_are_mates_and_both_ends_of_every_hop_that_some_microbatch_takes() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=4)
    assert all_partners(layout) == {0: (1, 2), 1: (0, 3), 2: (0, 3), 3: (1, 2), 4: (5, 6), 5: (4, 7), 6: (4, 7), 7: (5, 6)}
    away = Layout(4, 4, layout.replicas, (), (Route(0, LayerRange(2, 4), 1, 1),))
    assert all_partners(away) == {0: (1, 2, 6), 1: (0, 3, 7), 2: (0, 3), 3: (1, 2), 4: (5, 6), 5: (4, 7), 6: (0, 4, 7), 7: (1, 5, 6)}
    assert partners(away, 2) == (0, 3) and partners(away, 99) == ()
