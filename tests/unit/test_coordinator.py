"""The whole line on paper: detection, proof, split, recovery, and what must not confuse it. Pure, so seconds of training take milliseconds."""

from __future__ import annotations

import pytest
from tests.unit.paper_job import PaperJob, drive

from lurcher.config import PlanSection
from lurcher.control.coordinator import Coordinator
from lurcher.control.orders import BenchReport
from lurcher.layout import Layout
from lurcher.records import Decision

GRIDS = {"tp2pp2dp2": (2, 2, 2), "tp1pp4dp2": (1, 4, 2), "tp4pp1dp2": (4, 1, 2), "tp2pp1dp4": (2, 1, 4)}


def grid(name: str = "tp2pp2dp2") -> Layout:
    tp, pp, dp = GRIDS[name]
    return Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=4, num_microbatches=32)


def decisions(said: list, kind: str) -> list[Decision]:
    return [d for out in said for d in out.decisions if d.kind == kind]


def splits(coordinator: Coordinator) -> list[tuple[str, tuple[int, ...]]]:
    return [(r.outcome, r.plan.layout.split) for r in coordinator.reconfigurations]


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("factor", [1.6, 2.5])
def test_one_slow_rank_is_found_proven_mitigated_and_taken_back(name: str, factor: float) -> None:
    for rank in (0, 3, 5, 6):
        layout = grid(name)
        coordinator, _ = drive(PaperJob(layout, [(rank, factor, 25, 52)], seed=rank), 74)
        (episode,) = coordinator.episodes
        assert episode.ranks == {rank}
        assert abs(episode.onset - 25) <= 1 and episode.detected - 25 <= 8
        assert episode.end is not None and abs(episode.end - 51) <= 1
        (proof,) = [f for f in episode.findings if f.proven]
        assert proof.slowdown == pytest.approx(factor, rel=0.1)
        outcomes = splits(coordinator)
        assert [o for o, _ in outcomes] == ["applied", "reverted"]
        slow_replica = layout.position(rank).dp
        assert outcomes[0][1][slow_replica] == min(outcomes[0][1]) < layout.split[slow_replica]
        assert outcomes[1][1] == layout.split
        assert coordinator.state == "observe" and not coordinator.watchlist


@pytest.mark.parametrize("spread", [0.05, 0.8])
def test_a_healthy_job_stays_quiet(spread: float) -> None:
    for seed in range(5):
        coordinator, said = drive(PaperJob(grid(), length_spread=spread, noise=0.03, seed=seed), 120)
        assert coordinator.episodes == [] and coordinator.reconfigurations == ()
        assert not decisions(said, "suspicion") and not decisions(said, "finding")


def test_all_ranks_slow_alike_blames_nobody() -> None:
    coordinator, said = drive(PaperJob(grid(), common=(1.4, 30, 1000)), 80)
    assert not decisions(said, "suspicion") and coordinator.reconfigurations == ()
    (episode,) = coordinator.episodes
    assert not episode.validated and episode.end is None


def test_a_passing_slowdown_of_all_ranks_is_no_event() -> None:
    coordinator, said = drive(PaperJob(grid(), common=(1.3, 30, 45)), 90)
    assert decisions(said, "change_point") and coordinator.episodes == []
    assert coordinator.state == "observe"


def test_a_rank_that_shows_late_is_the_event_of_the_change_before_it() -> None:
    """At first all ranks look slow; then the machine is quiet again and one of them stays slow."""
    coordinator, _ = drive(PaperJob(grid(), [(5, 1.5, 38, 200)], common=(1.5, 30, 42)), 90)
    assert [e.ranks for e in coordinator.episodes] == [{5}]


def test_a_second_fault_during_mitigation_is_found_too() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(5, 1.8, 25, 200), (2, 1.8, 60, 200)]), 110)
    proven = [(f.component.ranks, e.detected) for e in coordinator.episodes for f in e.findings if f.proven]
    assert {ranks for ranks, _ in proven} == {(5,), (2,)}
    assert [e.ranks for e in coordinator.episodes] == [{5}, {2}], "another component is another event"
    assert abs(coordinator.episodes[1].onset - 60) <= 1
    assert {w.part for w in coordinator.watchlist} == {5, 2}
    last = coordinator.reconfigurations[-1].plan.layout.split
    assert abs(last[0] - last[1]) <= 2, "both replicas are about equally slow again"


def test_one_of_two_recovers_and_the_split_follows() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(5, 1.8, 25, 90), (6, 1.8, 25, 60)]), 120)
    assert splits(coordinator)[0][0] == "applied"
    assert coordinator.reconfigurations[-1].outcome == "reverted"
    assert not coordinator.watchlist
    assert all(not e.is_open for e in coordinator.episodes)


def test_a_worsening_fault_gets_another_split() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(5, 1.4, 25, 200), (5, 1.6, 70, 200)]), 110)
    applied = [split for outcome, split in splits(coordinator) if outcome == "applied"]
    assert len(applied) == 2 and applied[1][1] < applied[0][1] < 16
    assert len(coordinator.episodes) == 1, "one contiguous slow period is one event"


def test_a_short_burst_costs_at_most_a_benchmark() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(5, 2.0, 30, 34)]), 70)
    assert coordinator.reconfigurations == ()
    assert not any(e.validated for e in coordinator.episodes)


def test_fault_that_heals_before_the_benchmark_is_not_proven() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(5, 2.0, 30, 36)]), 80)
    assert not any(e.validated for e in coordinator.episodes)
    assert coordinator.reconfigurations == ()
    assert all(not e.is_open for e in coordinator.episodes)


def test_the_same_rank_twice_gives_two_events() -> None:
    coordinator, _ = drive(PaperJob(grid(), [(3, 1.8, 25, 50), (3, 1.8, 80, 110)]), 140)
    assert [e.ranks for e in coordinator.episodes] == [{3}, {3}]
    assert [outcome for outcome, _ in splits(coordinator)] == ["applied", "reverted"] * 2


def test_observe_policy_recommends_and_changes_nothing() -> None:
    coordinator, said = drive(PaperJob(grid(), [(5, 1.8, 25, 60)]), 74, PlanSection(policy="observe"))
    assert coordinator.reconfigurations == () and coordinator.mitigation.proposed
    assert all(out.layout is None for out in said)
    assert coordinator.episodes[0].validated


def test_same_inputs_same_decisions() -> None:
    runs = [drive(PaperJob(grid(), [(6, 1.7, 25, 52)], seed=4), 74)[1] for _ in range(2)]
    assert [d for out in runs[0] for d in out.decisions] == [d for out in runs[1] for d in out.decisions]


def test_predicted_gain_is_what_the_job_then_shows() -> None:
    job = PaperJob(grid(), [(5, 2.0, 25, 200)])
    coordinator, _ = drive(job, 70)
    (done,) = coordinator.reconfigurations
    samples = {s.iteration: s.duration_s for s in coordinator.view.history}
    slow = sorted(samples[i] for i in range(25, done.iteration))
    mitigated = sorted(samples[i] for i in range(done.iteration + 1, 70))
    measured = slow[len(slow) // 2] / mitigated[len(mitigated) // 2]
    assert done.plan.gain == pytest.approx(measured, rel=0.06)


def test_a_suspicion_that_passes_does_not_stop_the_learning() -> None:
    coordinator, said = drive(PaperJob(grid(), [(5, 2.0, 30, 33)]), 60)
    assert decisions(said, "change_point"), "three slow iterations are a suspicion"
    assert coordinator.state == "observe" and coordinator.episodes == []


def test_a_fault_after_an_unexplained_shift_is_an_event_of_its_own() -> None:
    job = PaperJob(grid(), [(6, 1.8, 80, 200)], common=(1.3, 30, 1000))
    coordinator, _ = drive(job, 120)
    assert [e.ranks for e in coordinator.episodes] == [frozenset(), {6}]
    assert abs(coordinator.episodes[1].onset - 80) <= 1


def test_a_benchmark_that_gives_no_answer_is_not_repeated_at_every_border() -> None:
    class Silent(PaperJob):
        def benchmark(self, ranks: tuple[int, ...], iteration: int) -> BenchReport:
            whole = super().benchmark(ranks, iteration)
            return whole if iteration < 50 else BenchReport(iteration, (), ranks)

    coordinator, said = drive(Silent(grid(), [(5, 1.8, 25, 52)]), 90)
    assert 5 in coordinator.watchlist, "nothing has proven that it healed"
    assert 3 <= len([out for out in said if out.bench]) <= 8
