"""A lost rank comes back after a wait that doubles while it flaps, and not for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lurcher.control.respawn import COOL_DOWN_S, MOST_STARTS, WINDOW_S, Respawner, when_back


def test_the_first_loss_waits_for_the_cool_down() -> None:
    back = when_back(2, [100.0], 0)
    assert back.at_s == 100.0 + COOL_DOWN_S
    assert back.reason == "rank 2 will be started again, as a standby, 10 s after it was missed"


def test_the_wait_doubles_with_each_loss_that_is_close_to_the_one_before() -> None:
    assert when_back(0, [0.0, 50.0], 1).at_s == 50.0 + 2 * COOL_DOWN_S
    assert when_back(0, [0.0, 50.0, 300.0], 2).at_s == 300.0 + 4 * COOL_DOWN_S
    assert "lost 3 times" in when_back(0, [0.0, 50.0, 300.0], 2).reason
    late = 50.0 + WINDOW_S + 1.0
    assert when_back(0, [0.0, 50.0, late], 2).at_s == late + COOL_DOWN_S


def test_it_stays_out_in_the_end() -> None:
    back = when_back(1, [0.0], MOST_STARTS)
    assert back.at_s is None and "stays out" in back.reason


def test_each_loss_is_told_and_waited_for_once() -> None:
    respawner = Respawner()
    ranks, reasons = respawner.step(5.0, (3,))
    assert ranks == () and len(reasons) == 1
    assert respawner.step(14.9, (3,)) == ((), ())
    assert respawner.step(15.0, (3,)) == ((3,), ())
    assert respawner.step(16.0, ()) == ((), ())  # it runs
    ranks, reasons = respawner.step(17.0, (3,))  # and is gone again
    assert ranks == () and "lost 2 times" in reasons[0]
    assert respawner.step(37.0, (3,)).ranks == (3,)


@given(st.lists(st.tuples(st.floats(0.1, 400.0), st.sets(st.integers(0, 2))), max_size=60))
def test_no_rank_is_started_too_often_or_too_soon(moves: list[tuple[float, set[int]]]) -> None:
    """Against what was seen from outside: an absent rank that was started may be absent again at once."""
    respawner, now_s = Respawner(), 0.0
    since: dict[int, float] = {}
    starts = dict.fromkeys(range(3), 0)
    for wait_s, absent in moves:
        now_s += wait_s
        seen = absent | since.keys()  # who is absent stays so until it is started
        for rank in seen:
            since.setdefault(rank, now_s)
        for rank in respawner.step(now_s, seen).ranks:
            assert rank in seen and now_s - since.pop(rank) >= COOL_DOWN_S
            starts[rank] += 1
    assert max(starts.values()) <= MOST_STARTS
