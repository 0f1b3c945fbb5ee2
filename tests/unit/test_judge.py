"""The judge: own baseline and cohort at the same instant, a common shift divided out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.records import BenchResult, Component, Finding, Suspicion
from lurcher.validate.judge import judge

SUSPECT = Suspicion(Component.of_rank(5), "compute", 1.8, 0.9)


def bench(rank: int, seconds: float, name: str = "gemm") -> BenchResult:
    return BenchResult(Component.of_rank(rank), name, seconds, 5)


def judged(measured: float, baseline: float | None, cohort: list[float], before: list[float] | None = None) -> Finding:
    peers = [bench(r, x) for r, x in enumerate(cohort)]
    healthy = [bench(r, x) for r, x in enumerate(before or [])]
    own = None if baseline is None else bench(5, baseline)
    return judge(SUSPECT, bench(5, measured), own, peers, healthy, "emulated")


def test_slower_than_itself_and_than_its_cohort_is_proven() -> None:
    finding = judged(0.036, 0.020, [0.0201, 0.0199, 0.0200])
    assert finding.proven
    assert finding.slowdown == pytest.approx(1.8, rel=0.01)
    assert (finding.measured, finding.baseline, finding.unit, finding.num_repeats) == (0.036, 0.020, "s", 5)
    assert finding.validated_by == "emulated"
    for part in ("rank 5", "36.00 ms", "x1.80", "20.00 ms", "cohort of 3", "over the limit of x1.10"):
        assert part in finding.reason


def test_all_slower_alike_is_nobodys_fault() -> None:
    finding = judged(0.036, 0.020, [0.036, 0.0355, 0.037])
    assert not finding.proven
    assert finding.slowdown == pytest.approx(1.0, abs=0.02)
    assert "not over the limit" in finding.reason


def test_a_common_shift_is_divided_out_of_a_real_one() -> None:
    finding = judged(0.045, 0.020, [0.025, 0.025])
    assert finding.proven
    assert finding.slowdown == pytest.approx(1.8)


def test_a_cohort_that_is_faster_proves_nothing() -> None:
    finding = judged(0.0205, 0.020, [0.010, 0.010])
    assert not finding.proven
    assert finding.slowdown == pytest.approx(1.025)


def test_members_are_held_against_their_own_baselines() -> None:
    """The like of rank 5 has always been twice as fast: nothing common has shifted."""
    assert judged(0.036, 0.020, [0.010], [0.010]).proven
    assert not judged(0.036, 0.020, [0.018], [0.010]).proven


def test_one_bad_member_of_the_cohort_does_not_hide_the_suspect() -> None:
    assert judged(0.036, 0.020, [0.020, 0.060]).proven


def test_without_a_cohort_the_own_baseline_speaks() -> None:
    finding = judged(0.036, 0.020, [])
    assert finding.proven
    assert "no cohort" in finding.reason
    assert not judged(0.0215, 0.020, []).proven


def test_without_a_baseline_the_cohort_speaks() -> None:
    finding = judged(0.036, None, [0.020, 0.020])
    assert finding.proven
    assert finding.baseline == pytest.approx(0.020)
    assert "no baseline" in finding.reason


def test_with_neither_nothing_is_proven() -> None:
    finding = judged(0.036, None, [])
    assert not finding.proven
    assert "neither" in finding.reason


def test_other_benchmarks_and_broken_times_are_left_out() -> None:
    finding = judge(SUSPECT, bench(5, 0.036), bench(5, 1.0, "p2p"), [bench(1, 0.02), bench(2, float("nan")), bench(3, 0.0)], [], "device")
    assert finding.proven
    assert "no baseline" in finding.reason
    assert not judge(SUSPECT, bench(5, float("nan")), bench(5, 0.02), [], [], "device").proven
    only_itself = judge(SUSPECT, bench(5, 0.036), None, [bench(5, 0.036)], [], "device")
    assert not only_itself.proven


@given(st.floats(0.5, 4), st.floats(0.5, 4), st.floats(1e-6, 1e3), st.integers(1, 5))
def test_proven_means_what_it_says(own: float, shift: float, unit: float, num_peers: int) -> None:
    finding = judged(own * unit, unit, [shift * unit] * num_peers)
    expected = own > 1.10 and own / shift > 1.10
    if min(abs(own - 1.10), abs(own / shift - 1.10)) > 1e-6:
        assert finding.proven == expected
    assert "\n" not in finding.reason
