"""The test over all ranks of a job: against the plain rule, at size, without look-ahead, and how sure its names are."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from math import log
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_analyze_ranks import healthy, job, log_of

from lurcher.analyze.confidence import confidence_of, is_smear, rose_alike
from lurcher.analyze.expected import job_series, residuals
from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.rank_levels import Levels, medians_or_nan
from lurcher.analyze.rank_screen import CHANCE, FIRST_SAMPLES, SAMPLES, SIZE, Cusum, screen
from lurcher.analyze.rank_table import RankTable, middles, rank_table, row_medians
from lurcher.analyze.rank_work import Work, WorkFit, work_of
from lurcher.analyze.ranks import rank_events
from lurcher.analyze.values import VerdictEvent

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """bench/ is no package: its files find each other because a script's own folder is on the path."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    import fleet as bench_fleet

    yield bench_fleet
    sys.path.pop(0)


def busy(num: int, num_ranks: int, seed: int, sigma: float = 0.02, common: float = 0.03) -> Floats:
    random = np.random.default_rng(seed)
    own = 1.0 + sigma * random.standard_normal((num, num_ranks))
    return own * (1.0 + common * random.standard_normal((num, 1))) * (1.0 + 0.03 * np.clip(random.standard_normal(num_ranks), -3, 3))


def events_of(values: Floats, first: int = 0) -> tuple[VerdictEvent, ...]:
    num, num_ranks = values.shape
    table = RankTable(np.arange(first, first + num), np.arange(num_ranks), frozenset({"busy_s"}), {"busy_s": values}.__getitem__)
    return rank_events(table, values.max(axis=1) + 0.2)


# --- the parts, against the plain rule ----------------------------------------------------------------------------------------


def others_of(row: list[float], place: int) -> float:
    others = sorted(x for i, x in enumerate(row) if i != place and np.isfinite(x))
    known = sum(map(np.isfinite, row))
    return others[(len(others) - 1) // 2] if others and 2 * known >= len(row) else float("nan")


@settings(max_examples=80)
@given(st.integers(1, 9), st.floats(0, 0.6), st.integers(0, 10_000), st.booleans())
def test_each_rank_is_held_against_the_lower_median_of_the_others(num_ranks: int, gaps: float, seed: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(1, 4, (6, num_ranks)).astype(float) if ties else random.random((6, num_ranks))
    values[random.random(values.shape) < gaps] = np.nan
    found = middles(values).of_others(values)
    for row in range(6):
        for place in range(num_ranks):
            if np.isfinite(values[row, place]):
                assert found[row, place] == pytest.approx(others_of(values[row].tolist(), place), nan_ok=True)
    assert row_medians(values) == pytest.approx(
        np.array([np.median(r[np.isfinite(r)]) if np.isfinite(r).any() else np.nan for r in values]), nan_ok=True
    )
    assert medians_or_nan(values) == pytest.approx(row_medians(values.T), nan_ok=True)


@settings(max_examples=40)
@given(st.integers(1, 5), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 10_000))
def test_the_test_is_pages_cusum_sample_by_sample(num_ranks: int, lengths: list[int], seed: int) -> None:
    """Whatever the blocks; alarms as a loop over single samples has them."""
    random = np.random.default_rng(seed)
    rises = random.normal(0.03, 0.05, (sum(lengths), num_ranks))
    rises[random.random(rises.shape) < 0.05] = np.nan
    levels = Levels(np.ones(num_ranks))
    levels.begin(1.0 + random.normal(0.0, 0.02, (FIRST_SAMPLES, num_ranks)), np.ones((FIRST_SAMPLES, num_ranks)))
    test, begin, moved_at = Cusum(num_ranks), 0, []
    for length in lengths:
        _, moved = test.feed(rises[begin : begin + length], levels, begin)
        begin += length
        moved_at.append((begin, moved))
    threshold = log(num_ranks / CHANCE)
    most = threshold / (SAMPLES - 0.5)
    expected = set()
    for place in range(num_ranks):
        gain = SIZE / (levels.sigma[place] ** 2 * levels.inflation[place])
        slack = SIZE / 2 + 2 * levels.error[place]
        score = 0.0
        for row, rise in enumerate(rises[:, place].tolist()):
            for border, moved in moved_at:
                if row == border:
                    score = 0.0 if moved[place] else min(score, threshold + most)
            step = (rise - slack) * gain
            score = max(0.0, score + max(-most, min(most, step))) if np.isfinite(step) else score
            if score > threshold:
                expected.add((place, row))
    found = {(a.place, row) for a in test.alarms() for row in range(a.first, a.last + 1) if row >= FIRST_SAMPLES}
    assert found == {(place, row) for place, row in expected if row >= FIRST_SAMPLES}


def test_the_threshold_grows_with_the_logarithm_of_the_ranks() -> None:
    assert Cusum(10_000).threshold - Cusum(10).threshold == pytest.approx(log(1000))


@pytest.mark.parametrize("known", ["both", "tokens", "squares"])
def test_the_work_fit_finds_each_ranks_own_terms(known: str) -> None:
    random = np.random.default_rng(3)
    tokens, squares = random.uniform(0.5, 1.5, (600, 4)), random.uniform(0.2, 3.0, (600, 4))
    work = Work(tokens if known != "squares" else np.zeros_like(tokens), squares if known != "tokens" else np.zeros_like(squares))
    terms = np.array([[0.1, 0.6, 0.3], [0.1, 0.6, 0.3], [0.3, 0.9, 0.1], [0.1, 1.2, 0.6]])
    seconds = np.einsum("tni,ni->tn", work.rows(slice(None)), terms)
    values = seconds * (1.0 + 0.01 * random.standard_normal(seconds.shape))
    values[0] *= 30.0  # the first iteration
    fit = WorkFit(values[:24], work.rows(slice(0, 24)))
    start = np.nanmedian(values[:24] / fit.expected_s(work.rows(slice(0, 24))), axis=0)
    fit.settle(start)
    calm = np.ones(4, bool)
    for begin in range(24, 536, 32):
        part = slice(begin, begin + 32)
        values[part, 1] *= 1.5  # slow, and held back from learning: it must not change what is expected
        fit.learn(values[part], work.rows(part), calm & (np.arange(4) != 1))
    last = slice(536, 600)
    error = fit.expected_s(work.rows(last)) / seconds[last] - 1.0
    assert np.abs(np.median(error[:, [0, 2, 3]], axis=0)).max() < 0.01 and abs(np.median(error[:, 1])) < 0.03
    assert np.std(error[:, [0, 2, 3]], axis=0).max() < 0.02


# --- at size ----------------------------------------------------------------------------------------------------------------


def test_one_of_a_thousand_is_named_soon_and_nobody_else() -> None:
    values = busy(700, 1000, 1)
    assert events_of(values) == ()
    values[433:, 617] *= 1.10
    (event,) = events_of(values)
    assert event.suspects[0].component.ranks == (617,) and abs(event.onset_iteration - 433) <= 2
    assert 6 <= event.detected_iteration - 433 <= 15
    assert event.suspects[0].slowdown == pytest.approx(1.10, abs=0.01) and event.suspects[0].confidence >= 0.9


def test_memory_beside_the_input_is_bounded() -> None:
    values = busy(4000, 512, 2)
    tracemalloc.start()
    screen(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < values.nbytes / 2


@pytest.mark.parametrize("seed", range(6))
def test_a_name_needs_nothing_that_came_later(seed: int) -> None:
    """Cut after its detected iteration the input gives the same detection; one sample earlier it gives none."""
    random = np.random.default_rng([7, seed])
    values = busy(260, 100, 50 + seed, sigma=float(random.uniform(0.005, 0.03)))
    rank, onset = int(random.integers(100)), int(random.integers(40, 200))
    values[onset : onset + int(random.integers(30, 200)), rank] *= float(random.uniform(1.10, 1.5))
    (event,) = events_of(values)
    assert event.suspects[0].component.ranks == (rank,)
    (cut,) = events_of(values[: event.detected_iteration + 1])
    assert (cut.detected_iteration, cut.suspects[0].component) == (event.detected_iteration, event.suspects[0].component)
    assert events_of(values[: event.detected_iteration]) == ()


def test_a_second_slowdown_of_the_same_rank_is_found_and_one_on_top_is_part_of_it() -> None:
    values = busy(900, 40, 4)
    values[200:500, 3] *= 1.2
    values[700:, 3] *= 1.2
    found = events_of(values)
    assert [(e.onset_iteration, e.end_iteration) for e in found] == [
        (pytest.approx(200, abs=2), pytest.approx(499, abs=2)),
        (pytest.approx(700, abs=2), None),
    ]
    values = busy(900, 40, 4)
    values[200:, 3] *= 1.2
    values[600:, 3] *= 1.5
    (event,) = events_of(values)
    assert event.onset_iteration == pytest.approx(200, abs=2) and any("from iteration 600 on x1." in said for said in event.evidence)


def test_a_rank_that_is_slow_for_good_is_seen_to_become_worse_than_its_group() -> None:
    values = busy(900, 100, 5)
    values[150:, :20] *= 1.3
    values[500:, 7] *= 1.5
    named = {e.suspects[0].component.ranks for e in events_of(values)}
    assert named == {tuple(range(20)), (7,)}


def test_ranks_that_were_late_or_away_are_watched_too() -> None:
    values = busy(500, 30, 6)
    values[:120, 4] = np.nan  # joins later
    values[np.random.default_rng(0).random(500) < 0.3, 5] = np.nan  # reports two iterations of three
    values[300:, 4] *= 1.3
    values[300:, 5] *= 1.3
    assert [e.suspects[0].component.ranks for e in events_of(values)] == [(4,), (5,)]


@pytest.mark.parametrize("known_from", [90, 380, 400])
def test_columns_that_begin_late_or_never_are_judged_from_there(known_from: int) -> None:
    parts = with_work(2)
    parts["busy_s"][:known_from] = np.nan
    duration = np.full_like(parts["busy_s"], 1.5)
    assert analyze_log(log_of({**parts, "duration_s": duration})).events == ()
    parts["busy_s"][250:, 3] *= 1.2
    found = analyze_log(log_of({**parts, "duration_s": duration})).events
    assert [e.suspects[0].component.ranks for e in found] == ([(3,)] if known_from == 90 else [])


def test_the_other_of_two_is_not_blamed_when_one_becomes_faster() -> None:
    values = busy(400, 2, 7)
    values[200:, 0] *= 0.7
    assert events_of(values) == ()
    values = busy(400, 2, 7)
    values[200:, 0] *= 1.3
    assert [e.suspects[0].component.ranks for e in events_of(values)] == [(0,)]


def test_many_that_rise_at_once_are_one_group() -> None:
    values = busy(500, 400, 9)
    values[300:, 40:140] *= 1.2
    (event,) = events_of(values)
    suspect = event.suspects[0]
    assert (suspect.component.kind, suspect.component.id, len(suspect.component.ranks)) == ("group", "40-139", 100)
    assert suspect.cause == "compute" and suspect.slowdown == pytest.approx(1.2, abs=0.01) and suspect.confidence < 0.9


def test_the_one_that_many_mates_wait_for_is_named_and_they_are_not() -> None:
    values = busy(500, 200, 10)
    values[300:, 16:32] *= 1.2
    values[300:, 21] *= 1.5
    (event,) = events_of(values)
    assert event.suspects[0].component.ranks == (21,) and event.suspects[0].confidence >= 0.9
    assert any("group 16-31 is up" in said for said in event.evidence)


@pytest.mark.parametrize(
    ("ranks", "kind", "name"), [((3,), "rank", "3"), ((2, 5), "link", "2-5"), ((4, 5, 6, 7), "group", "4-7"), ((0, 1, 4), "group", "0-1,4")]
)
def test_transfers_that_rise_together_are_one_link_or_group(ranks: tuple[int, ...], kind: str, name: str) -> None:
    parts = healthy(num_ranks=16)
    parts["transfer_s"][150:300, list(ranks)] *= 3.0
    verdict = analyze_log(job(parts))
    (event,) = verdict.events
    (suspect,) = event.suspects
    assert (suspect.component.kind, suspect.component.id, suspect.component.ranks, suspect.cause) == (kind, name, ranks, "communication")
    assert (event.onset_iteration, event.end_iteration) == (pytest.approx(150, abs=1), pytest.approx(299, abs=1))
    assert suspect.slowdown == pytest.approx(3.0, abs=0.1) and verdict.verdict == "fail_slow"


def test_half_of_all_transfers_are_a_group_and_all_of_them_are_nobody() -> None:
    parts = healthy(num_ranks=8)
    parts["transfer_s"][150:, :4] *= 3.0
    (event,) = analyze_log(job(parts)).events
    assert event.suspects[0].component.ranks == (0, 1, 2, 3)
    parts["transfer_s"][150:, 4:] *= 3.0
    (event,) = analyze_log(job(parts)).events
    assert (event.kind, event.suspects) == ("level_shift", ())


def test_mates_that_wait_in_their_transfers_are_no_slow_link() -> None:
    parts = healthy(num_ranks=16)
    parts["busy_s"][150:, 5] *= 1.3
    parts["transfer_s"][150:, [4, 6, 7]] += 0.24  # an input that does not tell waiting from transfer
    (event,) = analyze_log(job(parts)).events
    assert event.suspects[0].component.ranks == (5,) and event.cause == "compute"


def test_input_that_usually_takes_no_time_is_watched() -> None:
    parts = healthy(num_ranks=8)
    parts["input_s"] = np.zeros_like(parts["input_s"])
    parts["input_s"][150:300, 5] = 0.2
    (event,) = analyze_log(job(parts)).events
    assert event.suspects[0].component.ranks == (5,) and event.cause == "input" and np.isfinite(event.suspects[0].slowdown)


# --- work -------------------------------------------------------------------------------------------------------------------


def with_work(seed: int, num: int = 400, num_ranks: int = 8, cov: float = 0.2) -> dict[str, Floats]:
    """Documents of uneven length: tokens and squared lengths of every rank vary by `cov`, and so does its time."""
    random = np.random.default_rng(seed)
    tokens = np.round(8192 * np.clip(1.0 + cov * random.standard_normal((num, num_ranks)), 0.3, 2.0))
    squares = np.round(tokens**2 * random.uniform(0.2, 0.6, tokens.shape))
    seconds = 0.05 + 0.6 * tokens / 8192 + 0.35 * squares / (0.4 * 8192**2)
    return {"num_tokens": tokens, "sum_len_sq": squares, "busy_s": seconds * (1.0 + 0.01 * random.standard_normal(tokens.shape))}


@pytest.mark.parametrize("cov", [0.15, 0.25])
def test_variable_length_raises_no_alarm_and_hides_no_slow_rank(cov: float) -> None:
    late = []
    for seed in range(6):
        parts = with_work(seed, cov=cov)
        assert np.std(parts["busy_s"]) / np.mean(parts["busy_s"]) >= cov
        log = log_of({**parts, "duration_s": np.broadcast_to(parts["busy_s"].max(axis=1, keepdims=True) + 0.1, parts["busy_s"].shape)})
        assert analyze_log(log).events == ()
        parts["busy_s"][200:, 5] *= 1.10
        log = log_of({**parts, "duration_s": np.broadcast_to(parts["busy_s"].max(axis=1, keepdims=True) + 0.1, parts["busy_s"].shape)})
        (event,) = analyze_log(log).events
        assert event.suspects[0].component.ranks == (5,) and event.suspects[0].slowdown == pytest.approx(1.10, abs=0.015)
        late.append(event.detected_iteration - 200)
    assert max(late) <= 20


def test_variable_length_of_the_job_is_that_of_the_rank_with_most_work() -> None:
    """No rank's busy time is known, only the job's time and every rank's work."""
    for seed in range(4):
        parts = with_work(seed)
        duration = np.broadcast_to(parts.pop("busy_s").max(axis=1, keepdims=True) + 0.1, (400, 8))
        assert analyze_log(log_of({**parts, "duration_s": duration})).events == ()
        slow = np.where(np.arange(400)[:, None] >= 250, 1.10, 1.0) * duration
        log = log_of({**parts, "duration_s": slow})
        (event,) = analyze_log(log).events
        assert event.kind == "level_shift" and event.suspects == () and 0 < event.detected_iteration - 250 <= 20
        fit = residuals(log, job_series(log), ()).values[50:250]
        assert np.std(fit) < 0.2 * np.std(duration[50:250, 0]) / np.mean(duration[50:250, 0])


def test_work_that_one_rank_does_not_tell_is_the_others() -> None:
    parts = with_work(1)
    parts["num_tokens"][:, 2] = 0
    parts["duration_s"] = parts["busy_s"]
    work = work_of(rank_table(log_of(parts)))
    assert work is not None and np.isfinite(work.tokens).all()
    assert work_of(rank_table(job({"busy_s": parts["busy_s"]}))) is None


# --- how sure ---------------------------------------------------------------------------------------------------------------


def test_more_evidence_is_more_confidence() -> None:
    base = {"noise": 0.02, "num_slow": 20, "num_before": 100}
    surest = confidence_of(1.3, **base)
    assert confidence_of(1.05, **base) < surest
    for name, less in (("noise", 0.1), ("num_slow", 8), ("num_before", 20)):
        assert confidence_of(1.3, **{**base, name: less}) < surest
    assert confidence_of(1.3, **{**base, "num_before": 0}) == 0.5


def test_who_rose_with_others_is_believed_less() -> None:
    assert not is_smear(1.8, []) and not is_smear(1.8, [1.2]) and is_smear(1.2, [1.8])
    assert rose_alike(1.8, [1.2]) == 0 and rose_alike(1.8, [1.7, 1.5, 1.3]) == 2
    values = busy(400, 64, 8)
    values[200:, 9] *= 1.6
    values[200:, 8] *= 1.2  # a mate that waits for it
    (event,) = events_of(values)
    assert (
        event.suspects[0].component.ranks == (9,) and event.suspects[0].confidence >= 0.9 and any("rank 8 is up" in said for said in event.evidence)
    )
    values[200:, 8] *= 1.3  # no mate does that
    found = events_of(values)
    assert [e.suspects[0].component.ranks for e in found] == [(8,), (9,)] and all(e.suspects[0].confidence < 0.9 for e in found)


def test_names_that_are_sure_are_right(bench: ModuleType) -> None:
    """Of suspects at 0.9 or more at least nine in ten, over simulated jobs with traps; bench/fleet.py has it at size."""
    sure = []
    for number in range(20):
        drawn = bench.draw(bench.generator(5, number))
        table, job_s = bench.table_of(drawn.columns)
        sure += [bench.right(s, event, drawn) for event in rank_events(table, job_s) for s in event.suspects if s.confidence >= 0.9]
    assert len(sure) >= 8 and np.mean(sure) >= 0.9
