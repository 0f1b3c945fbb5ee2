"""Who is named, who is not, and that the sentence says why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.layout import Layout
from lurcher.localize.cohort import cohort_only, suspects
from lurcher.localize.line import line_for
from lurcher.localize.links import Flow, Nodes, rings_of

LAYOUT = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=8)
STAGE_WORK = {0: 1.0, 1: 1.0, 2: 1.3, 3: 1.3, 4: 1.0, 5: 1.0, 6: 1.3, 7: 1.3}


def job(slow: dict[int, float], layout: Layout = LAYOUT, *, scatter: float = 0.01, seed: int = 0) -> tuple[dict[int, float], dict[int, float]]:
    """Ratios to own history, and busy time per unit: stages differ by design."""
    rng = np.random.default_rng(seed)
    ratios = {r: slow.get(r, 1.0) * (1 + scatter * float(rng.standard_normal())) for r in layout.ranks}
    return ratios, {r: x * (1.0 + 0.3 * layout.position(r).pp) for r, x in ratios.items()}


def named(slow: dict[int, float], layout: Layout = LAYOUT, **over: object) -> list[int]:
    found, reason = suspects(*job(slow, layout, seed=int(over.pop("seed", 0))), layout, 0.01, 1.10, **over)  # type: ignore[arg-type, call-overload]
    assert reason
    assert all(0 <= s.confidence <= 1 and s.evidence for s in found)
    return [s.component.ranks[0] for s in found]


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("factor", [1.2, 1.8])
def test_one_slow_rank_is_named(rank: int, factor: float) -> None:
    assert named({rank: factor}) == [rank]


def test_nobody_is_named_in_a_healthy_job() -> None:
    assert [named({}, seed=seed) for seed in range(200)] == [[]] * 200


@settings(max_examples=60, deadline=None)
@given(st.floats(1.2, 3), st.floats(1.2, 3), st.integers(0, 7), st.integers(0, 7))
def test_two_at_once_are_both_named_worst_first(a: float, b: float, i: int, j: int) -> None:
    mates = i // 2 == j // 2 and i != j
    # A mate under half of the other's excess is taken for smear: that is the price of not accusing innocent mates.
    if mates and (min(a, b) - 1) < 0.55 * (max(a, b) - 1):
        return
    slow = {i: a, j: b}
    found = named(slow)
    assert sorted(found) == sorted(slow)
    if abs(slow[i] - slow[j]) > 0.15:
        assert found[0] == max(slow, key=lambda r: slow[r])


def test_a_shift_of_all_names_nobody() -> None:
    ratios, per_unit = job(dict.fromkeys(range(8), 1.5))
    found, reason = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert found == ()
    assert "shifted alike, to x1.5" in reason


def test_a_slow_rank_inside_a_common_shift_has_its_own_part_only() -> None:
    ratios, per_unit = job({r: 1.3 * (1.6 if r == 2 else 1.0) for r in range(8)})
    (found,), _ = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert found.component.ranks == (2,)
    assert found.slowdown == pytest.approx(1.6, rel=0.03)


def test_a_smeared_mate_is_not_named_and_the_evidence_says_so() -> None:
    ratios, per_unit = job({5: 1.8, 4: 1.25})
    found, _ = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert [s.component.ranks for s in found] == [(5,)]
    assert any("mate rank 4" in line and "smear" in line for line in found[0].evidence)


def test_a_mate_more_than_half_as_slow_is_named_as_well() -> None:
    assert named({5: 1.8, 4: 1.6}) == [5, 4]


def test_the_cohort_must_agree() -> None:
    ratios, per_unit = job({5: 1.4})
    per_unit[1] = per_unit[5]  # its like needs the same time, healthily
    found, reason = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert found == ()
    assert "rank 5" in reason
    assert "not enough evidence" in reason


def test_a_whole_cohort_slow_is_told_by_history_alone() -> None:
    ratios, per_unit = job({1: 1.8, 5: 1.8})
    found, _ = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert sorted(s.component.ranks for s in found) == [(1,), (5,)]
    assert all("history alone" in s.evidence[1] for s in found)


def test_an_unknown_rank_is_no_measure_for_its_cohort() -> None:
    """Rank 1 is known to be slow and left out of the ratios: rank 5, its like, must still be named when it follows."""
    ratios, per_unit = job({1: 1.8, 5: 1.8})
    del ratios[1]
    found, _ = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert [s.component.ranks for s in found] == [(5,)]


def test_one_replica_has_no_cohort_and_says_so() -> None:
    single = Layout.uniform(tp=2, pp=2, dp=1, num_layers=4, num_microbatches=4)
    ratios, per_unit = job({3: 1.5}, single)
    (found,), _ = suspects(ratios, per_unit, single, 0.01, 1.10)
    assert found.component.ranks == (3,)
    assert "one replica" in found.evidence[1]
    assert found.confidence < suspects(*job({3: 1.5}), LAYOUT, 0.01, 1.10)[0][0].confidence


def test_two_ranks_one_slow() -> None:
    pair = Layout.uniform(tp=1, pp=1, dp=2, num_layers=2, num_microbatches=4)
    assert named({1: 1.8}, pair) == [1]
    assert named({0: 1.8}, pair) == [0]


def test_one_rank_alone_cannot_be_compared() -> None:
    alone = Layout.uniform(tp=1, pp=1, dp=1, num_layers=2, num_microbatches=4)
    found, reason = suspects({0: 1.8}, {0: 1.8}, alone, 0.01, 1.10)
    assert found == ()
    assert "nothing to compare" in reason


def test_missing_and_odd_values_are_unknown() -> None:
    ratios, per_unit = job({5: 1.8})
    ratios |= {0: float("nan"), 2: -1.0}
    per_unit[1] = float("nan")
    del ratios[6]
    found, _ = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)
    assert [s.component.ranks for s in found] == [(5,)]
    assert suspects({}, {}, LAYOUT, 0.01, 1.10)[0] == ()


def test_waiting_least_adds_confidence_and_evidence() -> None:
    ratios, per_unit = job({5: 1.4})
    plain = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10)[0][0]
    waits = dict.fromkeys(range(8), 0.22) | {5: 0.03}
    backed = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10, wait_share=waits)[0][0]
    assert backed.confidence > plain.confidence
    assert any("waits least of all: 3%" in line and "22%" in line for line in backed.evidence)


def test_the_line_grows_with_noise_and_ranks() -> None:
    assert line_for(8, 0.001, 1.10) == 1.10
    assert 1.10 < line_for(8, 0.03, 1.10) < line_for(100_000, 0.03, 1.10) < 1.25
    rng = np.random.default_rng(0)
    worst = max(1 + 0.03 * np.abs(rng.standard_normal(8)).max() for _ in range(500))
    assert line_for(8, 0.03, 1.0) > worst


def flows(**slow: float) -> list[Flow]:
    """What crosses the links of a job with one rank a node."""
    nodes, rings = Nodes({r: r for r in LAYOUT.ranks}), rings_of(LAYOUT)
    known = [(g.kind, rings[g.id]) for g in LAYOUT.groups() if g.kind in ("tp", "dp")] + [("pp", (r, r + 2)) for r in (0, 1, 4, 5)]
    return [Flow(kind, ranks, nodes.around(ranks), slow.get(f"{kind}_{'_'.join(map(str, ranks))}", 1.0)) for kind, ranks in known]


def test_a_slow_link_is_named_when_no_rank_is() -> None:
    ratios, per_unit = job({})
    found, reason = suspects(ratios, per_unit, LAYOUT, 0.01, 1.10, flows(dp_1_5=3.0))
    assert [(s.component.kind, s.component.id, s.component.ranks, s.cause) for s in found] == [("link", "node1-node5", (1, 5), "communication")]
    assert "link node1-node5" in reason


def test_a_slow_rank_and_a_slow_link_are_both_named_the_rank_first() -> None:
    found, reason = suspects(*job({5: 1.8}), LAYOUT, 0.01, 1.10, flows(dp_1_5=3.0))
    assert [s.cause for s in found] == ["compute", "communication"] and "rank 5" in reason
    assert not any("no rank" in line for line in found[1].evidence)
    assert [s.cause for s in suspects(*job({5: 1.8}), LAYOUT, 0.01, 1.10, flows())[0]] == ["compute"]


def test_slow_from_the_start_is_seen_in_the_cohort_only() -> None:
    _, per_unit = job({6: 1.5})
    (found,), _ = cohort_only(per_unit, LAYOUT)
    assert found.component.ranks == (6,)
    assert found.confidence < 0.5
    wide = Layout.uniform(tp=2, pp=2, dp=4, num_layers=4, num_microbatches=8)
    _, per_unit = job({6: 1.5}, wide)
    (sure,), _ = cohort_only(per_unit, wide)
    assert sure.confidence > found.confidence
    assert cohort_only(job({})[1], LAYOUT)[0] == ()
    single = Layout.uniform(tp=2, pp=2, dp=1, num_layers=4, num_microbatches=4)
    found_none, reason = cohort_only(job({1: 2.0}, single)[1], single)
    assert found_none == ()
    assert "cannot be told" in reason


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.5, 3.0), min_size=2, max_size=9))
def test_each_of_a_cohort_is_held_against_the_lower_median_of_the_others(times: list[float]) -> None:
    """Against the plain rule, with a line that every rank above it crosses."""
    wide = Layout.uniform(tp=1, pp=1, dp=len(times), num_layers=2, num_microbatches=2 * len(times))
    found, _ = cohort_only(dict(enumerate(times)), wide, noise=0.0, min_slowdown=1.01)
    expected = {}
    for rank, own in enumerate(times):
        others = sorted(times[:rank] + times[rank + 1 :])
        expected[rank] = own / others[(len(others) - 1) // 2]
    assert {s.component.ranks[0]: s.slowdown for s in found} == pytest.approx({r: x for r, x in expected.items() if x > 1.01})


def test_without_a_layout_all_ranks_are_one_cohort_and_must_be_even() -> None:
    even = dict.fromkeys(range(16), 1.0)
    (found,), _ = cohort_only(even | {6: 1.4}, None)
    assert found.component.ranks == (6,) and found.confidence == 0.5 and "layout is not known" in found.evidence[1]
    uneven = {r: 1.0 + 0.03 * r for r in range(16)}
    assert cohort_only(uneven, None)[0] == ()
    by_design, reason = cohort_only(even | dict.fromkeys(range(12, 16), 1.4), None)
    assert by_design == () and "4 of 16 ranks are over the line" in reason and "by design" in reason


def test_a_fleet_that_differs_for_good_hides_no_slow_rank_and_accuses_none() -> None:
    rng = np.random.default_rng(1)
    per_unit = dict(enumerate((1.0 + 0.03 * np.clip(rng.standard_normal(10_000), -3, 3)).tolist()))
    assert cohort_only(per_unit, None)[0] == ()
    slow = {r: per_unit[r] * 1.3 for r in (17, 4_000, 9_999)}
    found, _ = cohort_only(per_unit | slow, None)
    assert sorted(s.component.ranks[0] for s in found) == [17, 4_000, 9_999]
