"""What the report computes from a run: windows, slowdowns, marks, waits, and the answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import synthetic_run as synthetic
from hypothesis import given
from hypothesis import strategies as st

from lurcher.analyze.values import Verdict
from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.records import EVENT, Op, Place
from lurcher.report.change import compare, main_change
from lurcher.report.headline import headline, tiles
from lurcher.report.iteration_figure import badge_rows
from lurcher.report.load import Facts, group_by, load, median_of
from lurcher.report.pipeline import aligned, collective_waits, panels
from lurcher.report.ranks import GRID_RANKS, grid, ranks_to_draw, slowdowns, windows
from lurcher.report.timeline import marks
from lurcher.report.verdict_view import view_verdict
from lurcher.runlog import RunReader


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return load(RunReader(synthetic.write_run(tmp_path_factory.mktemp("facts") / "run")))


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.floats(-9, 9), st.just(float("nan")))), max_size=40))
def test_group_medians_agree_with_numpy(pairs: list[tuple[int, float]]) -> None:
    keys, values = np.array([k for k, _ in pairs], int), np.array([v for _, v in pairs], float)
    expected = [np.nan if np.isnan(values[keys == k]).all() else np.nanmedian(values[keys == k]) for k in np.unique(keys)]
    np.testing.assert_allclose(group_by(keys, values, median_of), expected)


def test_series_is_the_median_over_ranks(facts: Facts) -> None:
    assert len(facts.series.index) == synthetic.NUM_ITERATIONS
    assert np.isnan(facts.series.expected_s[:5]).all()
    assert facts.series.between(26, 32).min() > 1.4 * facts.series.between(3, 25).max()


def test_windows_follow_the_event(facts: Facts) -> None:
    compared = windows(facts)
    assert (compared.healthy.first, compared.healthy.end) == (3, synthetic.ONSET)
    assert (compared.fault.first, compared.fault.end) == (synthetic.ONSET, synthetic.END)
    assert [(w.name, w.first, w.end) for w in compared.phases] == [("before", 3, 25), ("slow", 25, 33), ("new layout", 34, 52)]


def test_slowdown_is_of_the_rank_itself_though_its_micro_batches_changed(facts: Facts) -> None:
    found = slowdowns(facts, windows(facts))
    assert found.pop(synthetic.SLOW_RANK) == pytest.approx(synthetic.SLOWDOWN, abs=0.03)
    assert list(found.values()) == pytest.approx([1.0] * 7, abs=0.02)


def test_without_an_event_thirds_are_compared(tmp_path: Path) -> None:
    healthy = load(RunReader(synthetic.write_run(tmp_path / "run", healthy=True)))
    assert [w.name for w in windows(healthy).phases] == ["first third", "last third"]
    assert list(slowdowns(healthy, windows(healthy)).values()) == pytest.approx([1.0] * 8, abs=0.02)
    assert headline(healthy, None).title == "Healthy"


def test_slow_from_the_start_is_compared_with_what_came_after(facts: Facts) -> None:
    assert facts.verdict
    early = msgspec.structs.replace(facts.verdict.events[0], onset_iteration=0)
    compared = windows(replace(facts, verdict=msgspec.structs.replace(facts.verdict, events=(early,))))
    assert (compared.healthy.name, compared.healthy.first) == ("afterwards", 52)


def test_marks_tell_the_story_in_order(facts: Facts) -> None:
    assert [(m.iteration, m.title) for m in marks(facts)] == [
        (25, "Onset"), (27, "Suspicion"), (31, "Confirmed"), (32, "Proven slow"), (33, "New layout"), (52, "Recovery"), (55, "Found healthy"), (56, "Reverted"),
    ]  # fmt: skip


def test_change_is_measured_against_its_promise(facts: Facts) -> None:
    change = main_change(facts)
    assert change and change.applied and change.reverted
    assert change.text == "micro-batches (16, 16) → (20, 12)"
    assert change.gain_measured == pytest.approx(change.plan.gain, rel=0.05)
    assert change.ladder.startswith("REBALANCE")
    assert {tile.label: tile.value for tile in tiles(facts, change)}["Delay to detection"] == "6"
    answers = [answer for _, answer in headline(facts, change).answers]
    assert answers[0].startswith("A real fault.")
    assert "rank 5 (node-b, cuda:1)" in answers[1]
    assert "1.80× as long" in answers[1]
    assert "(20, 12)" in answers[2]


def test_a_recommended_plan_is_not_called_done(facts: Facts) -> None:
    observed = replace(facts, decisions=[d for d in facts.decisions if d.kind != "reconfiguration"])
    change = main_change(observed)
    assert change and change.applied is None and change.gain_measured is None
    assert "recommended" in headline(observed, change).answers[2][1]


def test_values_of_another_shape_are_passed_over(facts: Facts) -> None:
    odd = [msgspec.structs.replace(d, value={"plan": 3}) for d in facts.decisions]
    assert main_change(replace(facts, decisions=odd)) is None
    assert marks(replace(facts, decisions=odd))


def test_a_changed_stage_is_put_in_words() -> None:
    before = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
    after = msgspec.convert(msgspec.to_builtins(before), Layout)
    replicas = list(msgspec.to_builtins(after)["replicas"])
    replicas[0]["stages"][0]["chunks"], replicas[0]["stages"][1]["chunks"] = [{"first": 0, "end": 3}], [{"first": 3, "end": 4}]
    after = msgspec.convert({**msgspec.to_builtins(after), "replicas": replicas}, Layout)
    first, second = compare(before, after)
    assert "layers 0–2 on ranks 0" in first.stages
    assert second.stages == ""


def test_collective_waits_agree_with_brute_force(facts: Facts) -> None:
    events = next(rows for _, label, rows in facts.windows if label == "slow")
    found = collective_waits(events)
    sync = {Op.ALL_REDUCE, Op.BARRIER}
    for i in np.random.default_rng(0).choice(len(events), 200, replace=False):
        e = events[i]
        mates = events[(events["group"] == e["group"]) & (events["seq"] == e["seq"]) & (events["op"] == e["op"])]
        expected = (e["end_ns"] - e["start_ns"] - (mates["end_ns"] - mates["start_ns"]).min()) / 1e9 if e["op"] in sync else 0.0
        assert found[i] == pytest.approx(expected)
    assert (found >= 0).all()


def test_hosts_are_aligned_by_the_common_end_whatever_their_clocks(facts: Facts) -> None:
    events = next(rows for _, label, rows in facts.windows if label == "slow")
    start_s, end_s = aligned(events, facts.places)
    moved = events.copy()
    away = np.isin(events["rank"], [r for r, place in facts.places.items() if place.host == "node-b"])
    moved["start_ns"][away] -= 10**13
    moved["end_ns"][away] -= 10**13
    np.testing.assert_array_equal(aligned(moved, facts.places), (start_s, end_s))
    assert end_s.max() == pytest.approx(float(facts.series.observed_s[30]), abs=1e-3)


def test_panels_before_during_after(facts: Facts) -> None:
    assert [(p.title, p.iteration) for p in panels(facts)] == [("before", 20), ("while slow", 30), ("after the change", 40)]
    suspect_only = replace(facts, windows=[(k, "suspect" if label == "slow" else label, rows) for k, label, rows in facts.windows])
    assert panels(suspect_only)[1].title == "while slow"


def test_unknown_operations_are_left_out() -> None:
    events = np.zeros(3, EVENT)
    events["op"], events["end_ns"] = [200, Op.FORWARD, Op.SEND], 1000
    start_s, _ = aligned(events, {0: Place(0, "a")})
    assert start_s.tolist() == [0, 0, 0]
    assert collective_waits(events).tolist() == [0, 0, 0]


@given(st.lists(st.integers(0, 100), max_size=30).map(sorted), st.floats(0.5, 20))
def test_badges_in_one_row_keep_their_distance(at: list[int], room: float) -> None:
    rows = badge_rows(at, room)
    for row in set(rows):
        placed = [x for x, r in zip(at, rows, strict=True) if r == row]
        assert all(b - a >= room for a, b in pairwise(placed))


def test_a_large_job_shows_its_slowest_rows(facts: Facts) -> None:
    layout = Layout.uniform(tp=8, pp=4, dp=128, num_layers=4, num_microbatches=512)
    large = replace(facts, header=msgspec.structs.replace(facts.header, layout=layout))
    rows, left_out = grid(large, dict.fromkeys(layout.ranks, 1.0) | {4000: 1.5})
    assert sum(len(row.cells) for row in rows) <= GRID_RANKS
    assert len(rows) + left_out == 512
    assert any(cell.rank == 4000 for row in rows for cell in row.cells)
    assert any(cell.suspect for row in rows for cell in row.cells)


def test_drawn_ranks_begin_with_the_suspects_and_their_kind() -> None:
    layout = Layout.uniform(tp=4, pp=2, dp=8, num_layers=4, num_microbatches=16)
    drawn = ranks_to_draw(layout, frozenset({37}), 16)
    assert len(drawn) == 16
    assert set(layout.replicas[4].stages[0].ranks + layout.replicas[4].stages[1].ranks) <= set(drawn)
    assert {5, 13} <= set(drawn)  # the same position in other replicas
    assert drawn == sorted(drawn)


def test_a_verdict_of_another_shape_is_an_error_that_names_the_file() -> None:
    assert view_verdict({"schema": "lurcher/verdict/1.2", "novelty": 1}, "v.json") is not None
    with pytest.raises(UserError, match=r"v\.json does not follow"):
        view_verdict({"events": 3}, "v.json")
    with pytest.raises(UserError, match=r"v\.json has schema"):
        view_verdict({"schema": "lurcher/verdict/2"}, "v.json")


def test_the_analysis_and_the_report_agree_on_the_file(tmp_path: Path) -> None:
    written = RunReader(synthetic.write_run(tmp_path / "run")).verdict()
    assert written
    values = msgspec.convert({**written, "plan": None}, Verdict)
    view = view_verdict(msgspec.to_builtins(values), "v.json")
    assert view and view.main_event
    assert msgspec.to_builtins(values.throughput) == msgspec.to_builtins(view.throughput)
    assert (view.main_event.onset_iteration, view.main_event.end_iteration, view.main_event.lost_s) == (25, 51, values.events[0].lost_s)
    assert view.main_event.suspects[0].component.ranks == (5,)
