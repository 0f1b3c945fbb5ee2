"""What another role does to a rank's busy time is no slowness, and slowness is no role."""

from __future__ import annotations

import pytest

from lurcher.control.roles import LEARN_ITERATIONS, MOST_OFF, Ends, Roles, roles_of
from lurcher.layout import LayerRange, Layout, Replica, Stage

ENDS = Ends(embed_layers=0.0, head_layers=0.5)


def pipeline(*ranks: int, layers: tuple[int, ...] = (2, 2), generation: int = 0) -> Layout:
    stages, first = [], 0
    for rank, count in zip(ranks, layers, strict=True):
        stages.append(Stage((rank,), (1,), (LayerRange(first, first + count),)))
        first += count
    return Layout(first, 4, (Replica(tuple(stages), 4),), generation=generation)


HOME = pipeline(0, 1)
SWAPPED = pipeline(1, 0, generation=1)


def entered(layout: Layout) -> Roles:
    roles = Roles(HOME)
    roles.enter(layout, ENDS)
    return roles


def test_a_role_is_what_a_rank_holds() -> None:
    layout = Layout(4, 2, (Replica((Stage((0, 1), (3, 1), (LayerRange(0, 3),)), Stage((2,), (1,), (LayerRange(3, 4),))), 2),))
    assert roles_of(layout) == {0: (3, 0.75, True, False), 1: (3, 0.25, True, False), 2: (1, 1.0, False, True)}


def test_who_gets_the_head_is_expected_to_take_longer_at_once() -> None:
    roles = entered(SWAPPED)
    assert roles.changed == {0, 1}
    assert roles.levels(SWAPPED) == {0: pytest.approx(1.25), 1: pytest.approx(0.8)}
    assert roles.corrected({0: 1.25, 1: 0.8}, ()) == {0: pytest.approx(1.0), 1: pytest.approx(1.0)}
    assert roles.levels(HOME) == {} and roles.levels(HOME.with_split((4,))) == {}
    assert roles.levels(pipeline(1, 0, layers=(3, 1), generation=9))[0] == pytest.approx(1.5), "a layout that is only thought of"


def test_a_slow_rank_keeps_its_slowness_in_another_role() -> None:
    roles = entered(SWAPPED)
    for _ in range(2 * LEARN_ITERATIONS):
        assert roles.corrected({0: 2.5, 1: 0.8}, {0})[0] == pytest.approx(2.0)


def test_levels_are_measured_but_not_far_from_what_is_expected() -> None:
    roles = entered(SWAPPED)
    for _ in range(LEARN_ITERATIONS):
        roles.corrected({0: 1.30, 1: 1.9}, ())
    assert roles.levels(SWAPPED) == {0: pytest.approx(1.30), 1: pytest.approx(0.8 * (1 + MOST_OFF))}
    assert roles.corrected({0: 1.30, 1: 1.9}, ())[1] > 2.0, "who became slow in just those iterations stands out"


def test_measured_levels_end_with_the_role() -> None:
    roles = entered(SWAPPED)
    for _ in range(LEARN_ITERATIONS):
        roles.corrected({0: 1.30, 1: 0.8}, ())
    roles.enter(pipeline(1, 0, generation=2), ENDS)
    assert roles.levels(pipeline(1, 0, generation=2))[0] == pytest.approx(1.30), "the same role goes on"
    roles.enter(pipeline(0, 1, generation=3), ENDS)
    assert roles.changed == frozenset() and roles.levels(pipeline(0, 1, generation=3)) == {}
    assert roles.corrected({0: 1.02, 1: 0.99}, ()) == {0: 1.02, 1: 0.99}
