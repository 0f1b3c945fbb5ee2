"""Faults: the text form round-trips, the table form says the same, and the span is half-open."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.faults import Fault, Iterations, Seconds, Where, active_at, factor_at, fault_from_toml, parse_fault

RANKS = Where("rank", (5,))
SLOW = Fault("slow", RANKS, 1.8, Iterations(20), Iterations(40))


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(["slow", "link", "stop", "hang", "ramp", "flap"]))
    on_link = kind == "link" or (kind in ("ramp", "flap") and draw(st.booleans()))
    ranks = draw(st.lists(st.integers(0, 9), min_size=2 if on_link else 1, max_size=2 if on_link else 4, unique=True).map(sorted))
    unit = Seconds if kind == "hang" or draw(st.booleans()) else Iterations
    size = st.integers(1, 10**6) if unit is Iterations else st.floats(1e-3, 1e6)
    onset = unit(draw(st.integers(0, 10**6) if unit is Iterations else st.floats(0, 1e6)))
    needs_end = kind == "ramp"
    duration = None if kind == "stop" or (not needs_end and draw(st.booleans())) else unit(draw(size))
    factor = 1.0 if kind in ("stop", "hang") else draw(st.floats(1.0, 1e6))
    phase = draw(st.sampled_from(["", "forward", "backward", "sync", "commit", "reconfigure"]))
    period = unit(draw(size)) if kind == "flap" else None
    return Fault(kind, Where("link" if on_link else "rank", tuple(ranks)), factor, onset, duration, phase, period)


@given(faults())
def test_text_and_json_round_trip(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault
    assert fault_from_toml({"text": str(fault)}) == fault
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slow rank 5 x1.8 from 20 to 60", SLOW),
        ("slow rank 5 x1.8 from 20 for 40", SLOW),
        ("SLOW rank 5 from 20 x1.8 to 60", SLOW),
        ("slow rank 5 x1.8 from 20", Fault("slow", RANKS, 1.8, Iterations(20))),
        ("slow rank 6,5 x2 from 0", Fault("slow", Where("rank", (5, 6)), 2.0, Iterations(0))),
        ("slow link 4-0 x3 from 30 for 10", Fault("link", Where("link", (0, 4)), 3.0, Iterations(30), Iterations(10))),
        ("link 0-4 x3 from 30", Fault("link", Where("link", (0, 4)), 3.0, Iterations(30))),
        ("slow rank 5 x1.8 from 12s to 60s", Fault("slow", RANKS, 1.8, Seconds(12.0), Seconds(48.0))),
        ("ramp rank 3 x1.5 from 20 to 60", Fault("ramp", Where("rank", (3,)), 1.5, Iterations(20), Iterations(40))),
        ("stop rank 2 from 30", Fault("stop", Where("rank", (2,)), 1.0, Iterations(30))),
        ("hang rank 2 from 3s for 5s", Fault("hang", Where("rank", (2,)), 1.0, Seconds(3.0), Seconds(5.0))),
        ("slow rank 5 x2 in backward from 3", Fault("slow", RANKS, 2.0, Iterations(3), phase="backward")),
        ("flap rank 5 x2 every 10 from 3", Fault("flap", RANKS, 2.0, Iterations(3), period=Iterations(10))),
    ],
)
def test_text_is_read_as_meant(text: str, expected: Fault) -> None:
    assert parse_fault(text) == expected


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"kind": "slow", "rank": 5, "factor": 1.8, "from": 20, "to": 60}, "slow rank 5 x1.8 from 20 to 60"),
        ({"kind": "slow", "rank": [6, 5], "factor": 2, "from": "12s", "for": "30s"}, "slow rank 5,6 x2 from 12s for 30s"),
        ({"kind": "slow", "link": "0-4", "factor": 3.0, "from": 30, "for": 10}, "slow link 0-4 x3 from 30 to 40"),
        ({"kind": "link", "link": [0, 4], "factor": 3.0, "from": 30}, "slow link 0-4 x3 from 30"),
        ({"kind": "flap", "rank": 1, "factor": 2.0, "from": 3, "every": 10, "phase": "sync"}, "flap rank 1 x2 in sync every 10 from 3"),
    ],
)
def test_table_says_the_same(table: dict[str, object], text: str) -> None:
    assert fault_from_toml(table) == parse_fault(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "allowed kinds: slow"),
        ("slwo rank 5 x2 from 3", '"slwo"; allowed kinds: slow'),
        ("slow rank 5 from 3", "no factor; add one, such as x1.8"),
        ("slow x2 from 3", "either a rank (rank 5) or a link (link 0-4)"),
        ("slow rank 1 link 1-2 x2 from 3", "either a rank"),
        ("slow rank 5 x2", 'add "from 20"'),
        ("slow rank 5 x2 fr 3", 'not understood at "fr"'),
        ("slow rank 5 x2 from", 'not understood at "from"'),
        ("slow rank 5 x2 x3 from 1", "twice"),
        ("slow rank five x2 from 1", 'names "five"'),
        ("slow rank 5 x2.5.1 from 1", 'factor "2.5.1"'),
        ("slow rank 5 x0.5 from 1", "1.0 is healthy"),
        ("slow rank 5 x1e999 from 1", "1.0 is healthy"),
        ("slow rank 5 x2 from -1", 'from "-1"'),
        ("slow rank 5 x2 from 20s to 30", "both in iterations, or both in seconds"),
        ("slow rank 5 x2 from 20 for 30s", "both in iterations or both in seconds"),
        ("slow rank 5 x2 from 20 to 20", "ends at 20, but begins at 20"),
        ("slow rank 5 x2 from 20 to 30 for 10", "both to and for"),
        ("slow rank 5 x2 in lunch from 1", "allowed: forward"),
        ("slow rank 5,5 x2 from 1", "each once"),
        ("link 0-4-5 x2 from 1", "joins two ranks"),
        ("link rank 3 x2 from 1", 'not understood at "3"'),
        ("stop link 0-4 from 1", "cannot hit a link"),
        ("stop rank 2 x2 from 1", "a stop has none"),
        ("stop rank 2 from 1 to 5", "does not come back"),
        ("hang rank 2 from 1 to 5", "in seconds"),
        ("ramp rank 2 x2 from 1", "needs an end"),
        ("flap rank 2 x2 from 1", "every 10"),
        ("slow rank 2 x2 every 3 from 1", "only a flap"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_fault(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"kind": "slow", "rnk": 5}, 'unknown key "rnk"; allowed: kind'),
        ({"rank": 5, "factor": 2.0, "from": 1}, "kind is ''; allowed: slow"),
        ({"kind": "slow", "rank": True, "factor": 2.0, "from": 1}, 'names "True"'),
        ({"kind": "slow", "rank": -5, "factor": 2.0, "from": 1}, "numbered from 0"),
        ({"kind": "slow", "rank": 5, "factor": "big", "from": 1}, 'factor "big"'),
        ({"kind": "slow", "rank": 5, "factor": 2.0, "from": 12.5}, "seconds like 12s"),
        ({"text": "slow rank 5 x2 from 1", "rank": 5}, "remove rank"),
        ({"text": 5}, "expected text like"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        fault_from_toml(table)
    assert said in str(caught.value)


def test_the_span_is_half_open() -> None:
    assert [factor_at(SLOW, i, 0.0) for i in (19, 20, 59, 60)] == [1.0, 1.8, 1.8, 1.0]
    seconds = parse_fault("slow rank 5 x2 from 12s to 60s")
    assert [factor_at(seconds, 0, t) for t in (11.99, 12.0, 59.99, 60.0)] == [1.0, 2.0, 2.0, 1.0]
    assert factor_at(parse_fault("slow rank 5 x2 from 3"), 10**9, 0.0) == 2.0


def test_a_ramp_grows_linearly_to_its_factor() -> None:
    ramp = parse_fault("ramp rank 3 x1.5 from 20 to 30")
    assert [round(factor_at(ramp, i, 0.0), 9) for i in range(19, 31)] == [1.0, *(round(1 + 0.05 * k, 9) for k in range(1, 11)), 1.0]
    by_time = parse_fault("ramp rank 3 x3 from 10s for 20s")
    assert factor_at(by_time, 0, 20.0) == pytest.approx(2.0)


def test_a_flap_is_on_in_the_first_half_of_its_period() -> None:
    flap = parse_fault("flap rank 3 x2 every 4 from 10 to 18")
    assert [factor_at(flap, i, 0.0) for i in range(9, 19)] == [1.0, 2, 2, 1, 1, 2, 2, 1, 1, 1.0]


def test_stopped_and_hung_work_takes_for_ever() -> None:
    stop = parse_fault("stop rank 2 from 30")
    assert [factor_at(stop, i, 0.0) for i in (29, 30, 99)] == [1.0, math.inf, math.inf]
    hang = parse_fault("hang rank 2 from 3s for 5s")
    assert [active_at(hang, 0, t) for t in (2.9, 3.0, 7.9, 8.0)] == [False, True, True, False]


@given(faults(), st.integers(0, 2 * 10**6), st.floats(0, 2e6))
def test_the_factor_stays_between_healthy_and_its_own(fault: Fault, iteration: int, elapsed_s: float) -> None:
    factor = factor_at(fault, iteration, elapsed_s)
    active = active_at(fault, iteration, elapsed_s)
    if not active:
        assert factor == 1.0
    elif fault.kind in ("stop", "hang"):
        assert factor == math.inf
    else:
        assert 1.0 <= factor <= fault.factor * (1 + 1e-12)
