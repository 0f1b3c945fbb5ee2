"""The line for slow links, on paper: seen in transfers, proven by messages, answered by a swap, watched, taken back."""

from __future__ import annotations

import pytest
from tests.unit.paper_job import drive
from tests.unit.paper_links import PaperLinks

from lurcher.config import PlanSection
from lurcher.control.coordinator import Coordinator
from lurcher.control.orders import BenchReport, Outbox
from lurcher.control.policies import POLICIES
from lurcher.layout import Layout
from lurcher.records import Component, Decision
from lurcher.validate.rounds import Round

TWO_NODES = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
THREE_NODES = Layout.uniform(tp=1, pp=2, dp=3, num_layers=4, num_microbatches=24)
ACROSS = Component("link", "node0-node1", (0, 2))
FAULT = "slow link 0-2 x4 from 25 to 60"


def run(
    job: PaperLinks, num_iterations: int, policy: str = "greyhound", deaths: dict[int, tuple[int, ...]] | None = None
) -> tuple[Coordinator, list[Outbox]]:
    plan = PlanSection(policy=policy, cooldown_iterations=4)  # type: ignore[arg-type]
    return drive(job, num_iterations, plan, POLICIES[plan.policy].plan, nodes=job.nodes, deaths=deaths)


def decisions(said: list[Outbox], kind: str) -> list[Decision]:
    return [d for out in said for d in out.decisions if d.kind == kind]


@pytest.mark.parametrize("policy", ["greyhound", "joint"])
def test_a_slow_link_is_found_proven_swapped_away_and_the_swap_taken_back(policy: str) -> None:
    """Three nodes in a ring: while the link is slow it should carry activations; once it is well gradients cost less there."""
    job = PaperLinks(THREE_NODES, slow=(FAULT,))
    coordinator, said = run(job, 120, policy)
    (episode,) = coordinator.episodes
    assert episode.parts == {ACROSS} and episode.causes == ("communication",) and not episode.ranks
    assert abs(episode.onset - 25) <= 1 and episode.detected - 25 <= 8
    assert episode.end is not None and abs(episode.end - 59) <= 1
    assert len(episode.suspicions) == 3, "three links lie on every ring, so the benchmark had to tell"
    (proof,) = [f for f in episode.findings if f.proven]
    assert proof.slowdown == pytest.approx(4.0, rel=0.1)
    applied, reverted = coordinator.reconfigurations
    assert applied.outcome == "applied" and not {a.kind for a in applied.plan.actions} - {"swap", "consolidate"}
    assert reverted.outcome == "reverted" and reverted.plan.layout.replicas == THREE_NODES.replicas
    assert coordinator.state == "observe" and not coordinator.watchlist
    durations = {s.iteration: s.duration_s for s in coordinator.view.history}
    mitigated = sorted(durations[i] for i in range(applied.iteration + 1, 59))
    assert applied.plan.predicted_s == pytest.approx(mitigated[len(mitigated) // 2], rel=0.06)
    alarms = [d for d in decisions(said, "change_point") if d.value["tier"] == "confirmed" and d.value["direction"] == "slower"]
    assert len(alarms) == 1, "neither the change nor the way back alarms"


def test_between_two_nodes_data_and_pipeline_change_roles() -> None:
    coordinator, _ = run(PaperLinks(TWO_NODES, slow=("slow link 0-2 x4 from 25",)), 60)
    (episode,) = coordinator.episodes
    assert [s.component for s in episode.suspicions] == [ACROSS]
    (done,) = coordinator.reconfigurations
    data = [group.ranks for group in done.plan.layout.groups() if group.kind == "dp"]
    assert {rank // 2 for rank in data[0]} != {rank // 2 for rank in data[1]}, "sums stay inside a node"
    assert all(len({rank // 2 for rank in ranks}) == 1 for ranks in data)


def test_healthy_jobs_accuse_no_link() -> None:
    for layout, per_node in ((TWO_NODES, 2), (THREE_NODES, 2), (TWO_NODES, 1), (TWO_NODES, 4)):
        for seed in range(3):
            coordinator, said = run(PaperLinks(layout, ranks_per_node=per_node, noise=0.03, seed=seed), 60)
            assert coordinator.episodes == [] and not decisions(said, "suspicion") and coordinator.reconfigurations == ()


def test_a_slow_rank_among_nodes_is_a_slow_rank() -> None:
    coordinator, _ = run(PaperLinks(TWO_NODES, [(1, 1.8, 25, 52)]), 80)
    assert [e.parts for e in coordinator.episodes] == [{1}]


def test_a_slow_rank_and_then_a_slow_link_are_two_events() -> None:
    job = PaperLinks(THREE_NODES, [(1, 1.8, 25, 400)], slow=("slow link 2-4 x5 from 60",))
    coordinator, _ = run(job, 110, "rebalance")
    assert [e.parts for e in coordinator.episodes] == [{1}, {Component("link", "node1-node2", (2, 4))}]


def test_what_may_not_be_done_is_written_down_and_only_watched() -> None:
    coordinator, said = run(PaperLinks(THREE_NODES, slow=(FAULT,)), 90, "observe")
    assert coordinator.reconfigurations == () and all(out.layout is None for out in said)
    assert any("swap" in {a["kind"] for a in d.value["actions"]} for d in decisions(said, "plan"))
    (episode,) = coordinator.episodes
    assert episode.validated and episode.end is not None and abs(episode.end - 59) <= 1
    assert not any(d.reason.startswith("rebalance") for d in decisions(said, "ladder")), "another split does not help a link"


def test_a_link_that_carries_nothing_any_more_is_tested_now_and_then() -> None:
    """One rank a node: after the swap nothing needs the slow link."""
    coordinator, said = run(PaperLinks(TWO_NODES, ranks_per_node=1, slow=("slow link 0-2 x6 from 25 to 70",)), 110)
    (episode,) = coordinator.episodes
    assert episode.parts == {Component("link", "node0-node2", (0, 2))}
    tested = [out.rounds for out in said if out.rounds]
    assert all((0, 2) in {pair for one in rounds for pair in one} for rounds in tested[1:])
    assert 3 <= len(tested) <= 6
    assert episode.end is not None and 50 <= episode.end < 70 and not coordinator.watchlist


def test_an_innocent_link_is_not_proven() -> None:
    """Transfers take longer, but messages do not: the cause is elsewhere."""

    class Elsewhere(PaperLinks):
        def benchmark_links(self, rounds: tuple[Round, ...], iteration: int) -> BenchReport:
            return super().benchmark_links(rounds, 0)

    coordinator, _ = run(Elsewhere(TWO_NODES, slow=("slow link 0-2 x4 from 25 to 40",)), 80)
    assert not any(e.validated for e in coordinator.episodes) and coordinator.reconfigurations == ()


def test_a_link_without_an_answer_is_not_proven() -> None:
    class Silent(PaperLinks):
        def benchmark_links(self, rounds: tuple[Round, ...], iteration: int) -> BenchReport:
            return BenchReport(iteration, (), (2,))

    coordinator, _ = run(Silent(TWO_NODES, slow=(FAULT,)), 90)
    assert coordinator.reconfigurations == () and not coordinator.watchlist


def test_a_slow_link_inside_a_node_is_one_between_two_ranks() -> None:
    coordinator, _ = run(PaperLinks(TWO_NODES, slow=("slow link 0-1 x25 from 25 to 60",)), 90)
    (episode,) = coordinator.episodes
    assert episode.parts == {Component("link", "0-1", (0, 1))}
    (done,) = coordinator.reconfigurations
    assert all(set(group.ranks) != {0, 1} for group in done.plan.layout.groups()), "nothing passes between them any more"
    assert episode.end is not None and 50 <= episode.end < 60, "though healthy messages in a node scatter by half"


def test_the_same_inputs_give_the_same_decisions() -> None:
    runs = [run(PaperLinks(THREE_NODES, slow=(FAULT,), seed=4), 70)[1] for _ in range(2)]
    assert [d for out in runs[0] for d in out.decisions] == [d for out in runs[1] for d in out.decisions]


def test_a_link_whose_end_dies_is_the_same_link_with_another_end() -> None:
    job = PaperLinks(THREE_NODES, slow=("slow link 0-2 x4 from 25",))
    coordinator, _ = run(job, 80, "observe", deaths={50: (2,)})
    first, second = coordinator.episodes
    assert first.parts == {ACROSS} and first.end == 49
    assert second.parts == {Component("link", "node0-node1", (0, 3))}, "proven again, by the rank that is left of its node"
    (proof,) = [f for f in second.findings if f.proven]
    assert "of its healthy" in proof.reason, "its baseline holds"


def test_ranks_that_a_busy_host_holds_up_do_not_hide_the_link() -> None:
    """While the link becomes slow, two ranks seem slow, too, and are not in their benchmark: both are tested at the same border."""

    class Busy(PaperLinks):
        def benchmark(self, ranks: tuple[int, ...], iteration: int) -> BenchReport:
            return super().benchmark(ranks, 0)

    coordinator, _ = run(Busy(TWO_NODES, [(0, 1.5, 25, 33), (2, 1.4, 25, 33)], slow=(FAULT,)), 60)
    assert [e.parts for e in coordinator.episodes if e.validated] == [{ACROSS}]
    assert coordinator.reconfigurations[0].outcome == "applied"
