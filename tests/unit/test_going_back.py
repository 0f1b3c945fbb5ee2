"""What a death leads to: the present state, a cut, or the end; and what records and diagnosis make of iterations that are computed again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import header
from tests.unit.paper_job import PaperJob
from tests.unit.test_director import Notes, director, report

from lurcher.config import DetectSection, JobConfig, ModelSection, PlanSection
from lurcher.control.coordinator import Coordinator
from lurcher.control.death import UNMEASURED, way_on
from lurcher.control.diagnosis import diagnose
from lurcher.control.orders import Outbox, RanksLost
from lurcher.ingest.run_directory import read_run
from lurcher.layout import Layout
from lurcher.records import EVENT, ITERATION, Place, Plan, Reconfiguration
from lurcher.report.load import load
from lurcher.runlog import PART_ITERATIONS, RunReader, RunWriter
from lurcher.runtime.copies import choose_holders
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.reports import Resumption

MODEL = ModelSection(num_layers=4)


def grid(tp: int, pp: int, dp: int, standby: tuple[int, ...] = ()) -> Layout:
    layout = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=4, num_microbatches=8)
    return msgspec.structs.replace(layout, standby=standby)


def cut_of(layout: Layout, iteration: int = 20, gone: tuple[int, ...] = ()) -> Cut:
    return Cut(iteration, layout, tuple(choose_holders(layout, dict.fromkeys(layout.members, "here")).items()), gone)


def holders(cut: Cut, *ranks: int) -> set[int]:
    return {dict(cut.holders)[rank] for rank in ranks}


# --- which state to go on from -----------------------------------------------------------------------------------------------------


def test_while_the_others_hold_the_whole_model_nobody_goes_back() -> None:
    layout = grid(1, 2, 2)
    way = way_on(MODEL, layout, {1}, UNMEASURED, "1f1b", 23, cut_of(layout))
    assert way.plan is not None and way.cut is None and way.reason == way.plan.reason
    assert way == way_on(MODEL, layout, {1}, UNMEASURED, "1f1b", 23, None)


def test_the_last_owners_of_a_stage_take_all_back_to_the_cut_and_the_reason_says_how_far_and_why() -> None:
    layout = grid(1, 2, 2)
    cut = cut_of(layout)
    way = way_on(MODEL, layout, {0, 2}, UNMEASURED, "1f1b", 23, cut)
    assert way.plan is not None and way.cut == cut
    assert set(way.plan.layout.members) == {1, 3}
    assert "the last owners of embed[0:17] and 12 more are gone" in way.reason
    assert "all go back to iteration 20, of which every rank kept a copy: 3 iterations are computed again" in way.reason
    again = way_on(MODEL, layout, {0, 2}, UNMEASURED, "1f1b", 21, cut).reason
    assert "1 iteration is computed again" in again


def test_without_copies_the_job_ends_and_says_what_is_gone() -> None:
    layout = grid(1, 2, 2)
    way = way_on(MODEL, layout, {0, 2}, UNMEASURED, "1f1b", 23, None)
    assert way.plan is None and way.cut is None and "no rank holds embed[0:17] any more" in way.reason


def test_where_copies_are_gone_too_the_job_ends_and_names_who_had_them() -> None:
    layout = grid(1, 4, 1)
    cut = cut_of(layout)
    lost = {0, *holders(cut, 0)}
    way = way_on(MODEL, layout, lost, UNMEASURED, "1f1b", 23, cut)
    assert way.plan is None
    assert f"of the state after 20 iterations lay on ranks {sorted(lost)}" in way.reason and "none of them is left" in way.reason


def test_a_rank_that_came_back_since_the_cut_has_nothing_of_it() -> None:
    layout = grid(1, 4, 1)
    cut = cut_of(layout)
    (holder,) = holders(cut, 0)
    assert way_on(MODEL, layout, {0}, UNMEASURED, "1f1b", 23, cut).cut == cut
    assert way_on(MODEL, layout, {0}, UNMEASURED, "1f1b", 23, msgspec.structs.replace(cut, gone=(holder,))).plan is None


def test_a_rank_that_left_between_the_cut_and_now_has_nothing_of_it() -> None:
    """Its name is in the cut, but not in the layout in force."""
    before = grid(1, 2, 2)
    (holder,) = holders(cut_of(before), 0)
    plan = way_on(MODEL, before, {holder}, UNMEASURED, "1f1b", 0, None).plan
    assert plan is not None
    cut = Cut(20, before, ((0, holder), (holder, 0)))  # nobody else keeps anything for another
    assert way_on(MODEL, before, {0, 2}, UNMEASURED, "1f1b", 23, cut).cut == cut
    assert way_on(MODEL, plan.layout, {0, 2}, UNMEASURED, "1f1b", 23, cut).plan is None


def test_a_standby_is_a_new_home_for_what_died() -> None:
    layout = grid(1, 2, 1, standby=(2,))
    way = way_on(MODEL, layout, {1}, UNMEASURED, "1f1b", 29, cut_of(layout))
    assert way.plan is not None and way.cut is not None
    assert [stage.ranks for _, _, stage in way.plan.layout.stages()] == [(0,), (2,)]


def test_before_the_first_copy_the_training_begins_anew() -> None:
    layout = grid(1, 2, 1)
    way = way_on(MODEL, layout, {1}, UNMEASURED, "1f1b", 7, Cut(0, layout, ()))
    assert way.plan is not None and way.cut is not None and "7 iterations are computed again" in way.reason


# --- records ---------------------------------------------------------------------------------------------------------------------------


def rows_of(index: int, ranks: tuple[int, ...], duration_s: float) -> np.ndarray:
    rows = np.zeros(len(ranks), ITERATION)
    rows["index"], rows["rank"], rows["duration_s"], rows["expected_s"] = index, ranks, duration_s, np.nan
    return rows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 25), st.integers(0, 30), st.sets(st.integers(0, 5), min_size=1)), min_size=1, max_size=6))
def test_iterations_computed_again_leave_no_trace_of_the_first_time(
    tmp_path_factory: pytest.TempPathFactory, phases: list[tuple[int, int, set[int]]]
) -> None:
    """Phases of (iterations, how far back, ranks), against a dictionary."""
    writer = RunWriter.create(tmp_path_factory.mktemp("run"), header())
    expected: dict[tuple[int, int], float] = {}
    iteration = 0
    for number, (count, back, ranks) in enumerate(phases):
        for _ in range(count):
            writer.iterations(rows_of(iteration, tuple(sorted(ranks)), number + iteration / 100))
            expected |= {(iteration, rank): number + iteration / 100 for rank in ranks}
            iteration += 1
        iteration = max(0, iteration - back)
        writer.go_back(iteration)
        expected = {key: value for key, value in expected.items() if key[0] < iteration}
        assert as_dict(RunReader(writer.path).iterations()) == expected, "what was taken back is gone at once"
    writer.close()
    assert as_dict(RunReader(writer.path).iterations()) == expected


def as_dict(rows: np.ndarray) -> dict[tuple[int, int], float]:
    return {(int(row["index"]), int(row["rank"])): float(row["duration_s"]) for row in rows}


def test_report_and_analysis_of_a_run_directory_see_only_what_counts(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", header())
    for iteration in range(3 * PART_ITERATIONS + 4):
        writer.iterations(rows_of(iteration, (0, 1, 2), 9.0))
    writer.events(3, "healthy", np.zeros(2, EVENT))
    writer.events(30, "slow", np.zeros(2, EVENT))
    writer.go_back(2 * PART_ITERATIONS + 5)
    for iteration in range(2 * PART_ITERATIONS + 5, 40):
        writer.iterations(rows_of(iteration, (0, 2), 1.0))
    writer.close()
    facts = load(RunReader(writer.path))
    assert facts.series.index.tolist() == list(range(40))
    assert facts.series.observed_s.tolist() == [9.0] * 25 + [1.0] * 15
    assert [(at, label) for at, label, _ in facts.windows] == [(3, "healthy")]
    log = read_run(writer.path)
    assert len(log.rows) == 25 * 3 + 15 * 2
    assert set(log.rows["rank"][log.rows["index"] >= 25]) == {0, 2}
    assert not list(writer.path.rglob("*.tmp"))


LAYOUT = Layout.uniform(tp=1, pp=1, dp=2, num_layers=2, num_microbatches=4)


def test_the_director_goes_back_with_rows_counters_and_orders(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", header())
    ordered = LAYOUT.with_split((1, 3))

    told: list[object] = []

    class Orders(Coordinator):
        def step(self, now_s: float, message: object) -> Outbox:
            told.append(message)
            return Outbox(layout=ordered if getattr(message, "duration_s", 0) and message.iteration == 26 else None)

    config = JobConfig()
    coordinator = Orders(config.detect, config.plan, LAYOUT, "1f1b", emulated=True)
    watch = Notes()
    mine = director(run, coordinator, watch)
    mine.started({0: 10, 1: 11})
    for iteration in range(27):
        mine.observe(report(iteration))
    cut = Cut(20, LAYOUT, ((0, 1), (1, 0)))
    way = mine.lost((1,), LAYOUT, 27, "rank 1 was killed", cut)
    assert way is not None and way.cut is None, "the other replica holds all of it"
    way = Resumption(way.layout, cut)  # what a job whose last owner died would be told
    mine.resumed(msgspec.structs.replace(way.layout, generation=1), 20, 0.5)
    assert mine.border(20) == Border(), "an order for the layout that is gone is void"
    assert mine.iterations == list(range(20)) and len(mine.durations_s) == 20
    (lost,) = [message for message in told if isinstance(message, RanksLost)]
    assert lost.iteration == 20 and "from iteration 20 on, with 7 iterations to compute again, 0.50 s after" in lost.done.reason
    (stop,) = mine.losses
    assert (stop.iteration, stop.num_again, stop.lost_s) == (20, 7, pytest.approx(7.5))
    one = msgspec.structs.replace(way.layout, generation=1)
    for iteration in range(20, 24):
        mine.observe(only_rank_0(report(iteration, one)))
    run.close()
    rows = RunReader(run.path).iterations()
    assert sorted(set(rows["index"])) == list(range(24))
    assert set(rows["rank"][rows["index"] >= 20]) == {0} and set(rows["rank"][rows["index"] < 20]) == {0, 1}
    assert [snapshot.iteration for snapshot in watch.snapshots] == [*range(27), *range(20, 24)]
    places = tuple(Place(rank, "here", rank) for rank in (0, 1))
    verdict = diagnose(config, LAYOUT, Coordinator(config.detect, config.plan, LAYOUT, "1f1b", emulated=True), mine, places, run.path, 1.0, died="")
    assert verdict.source.num_iterations == 24
    (event,) = verdict.events
    assert event.kind == "fail_stop" and event.onset_iteration == 27 and event.lost_s == pytest.approx(7.5)


def only_rank_0(told):
    window = {0: told.window_ns[0]}
    return msgspec.structs.replace(told, events=told.events[told.events["rank"] == 0], window_ns=window)


# --- the diagnosis ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [0, 9])
def test_going_back_raises_no_alarm_and_a_fault_after_it_is_found(back: int) -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)
    plan = way_on(ModelSection(num_layers=4), layout, {5}, UNMEASURED, "1f1b", 0, None).plan
    assert plan is not None
    after = msgspec.structs.replace(plan.layout, generation=1)
    died, fault = 49, 49 - back + 25
    job = PaperJob(layout, [(2, 1.8, fault, 1000)])
    coordinator = Coordinator(DetectSection(), PlanSection(policy="observe"), layout, "1f1b", emulated=True)
    said = run_on(coordinator, job, range(died), layout)
    done = Reconfiguration(
        Plan(after, plan.actions, 1.0, 1.0, 1.0, 0.0, 0, ""), 1, died - back, 0.5, 0, "applied", f"rank 5 is gone, going on from {died - back}"
    )
    said.append(coordinator.step(0.0, RanksLost(died - back, (5,), done)))
    said += run_on(coordinator, job, range(died - back, fault), after)
    assert coordinator.episodes == [] and not [d for out in said for d in out.decisions if d.kind in ("suspicion", "finding")]
    run_on(coordinator, job, range(fault, fault + 20), after)
    (episode,) = coordinator.episodes
    assert episode.ranks == {2} and abs(episode.onset - fault) <= 1 and episode.detected - fault <= 10


def run_on(coordinator: Coordinator, job: PaperJob, iterations: range, layout: Layout) -> list[Outbox]:
    """Iterations on one layout, with the benchmarks that are asked for."""
    said, out = [], Outbox()
    for iteration in iterations:
        border, out = out, coordinator.step(float(iteration), job.step(iteration, layout))
        said.append(out)
        if border.bench:
            said.append(coordinator.step(float(iteration), job.benchmark(border.bench, iteration)))
    return said


def test_a_rank_that_only_stood_by_is_not_missed():
    layout = msgspec.structs.replace(Layout.uniform(tp=1, pp=2, dp=2, num_layers=MODEL.num_layers, num_microbatches=8), standby=(4, 5))
    way = way_on(MODEL, layout, {5}, UNMEASURED, "1f1b", 23, cut_of(layout))
    assert way.plan is not None and way.cut is None and way.plan.bytes_moved == 0
    assert way.plan.layout.replicas == layout.replicas and way.plan.layout.standby == (4,)
    assert way.reason == "rank 5 stood by: the work goes on as before"
