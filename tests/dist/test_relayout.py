"""A whole job, supervisor and ranks, whose layout changes at borders or because ranks die: every iteration counts once, and the loss is that
of one process."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from reference import Trained, train

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, RunSection
from lurcher.errors import JobDied
from lurcher.faults import parse_fault
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.records import WORKLOAD, BenchResult, Place
from lurcher.runtime.messages import Border
from lurcher.runtime.messages import Cut
from lurcher.runtime.reports import Outcome, Resumption, StepReport
from lurcher.runtime.supervisor import Supervisor
from lurcher.track.reduce import reduce_events

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]
ITERATIONS = 10


def two_stages(layers: int, microbatches: int, first: tuple[int, ...], second: tuple[int, ...]) -> Replica:
    stages = (Stage(first, (1,) * len(first), (LayerRange(0, layers),)), Stage(second, (1,) * len(second), (LayerRange(layers, 4),)))
    return Replica(stages, microbatches)


HOME = Layout(4, 8, (two_stages(2, 4, (0,), (1,)), two_stages(2, 4, (2,), (3,))))
UNEVEN = Layout(4, 8, (two_stages(1, 3, (0,), (1,)), two_stages(2, 5, (2,), (3,))), generation=1)
STANDBY = Layout(4, 8, (two_stages(3, 8, (0, 3), (1,)),), standby=(2,), generation=2)
BACK = msgspec.structs.replace(HOME, generation=3)
ORDERS = {2: UNEVEN, 4: STANDBY, 7: BACK}


class Changing:
    """Orders layouts at their borders or when ranks are lost, and keeps what it is told."""

    def __init__(self, orders: dict[int, Layout], without: dict[tuple[int, ...], Layout]) -> None:
        self._orders, self._without = orders, without
        self.reports: list[StepReport] = []
        self.lost_ranks: list[tuple[int, ...]] = []
        self.resumes: list[tuple[int, int]] = []

    def started(self, pids: dict[int, int]) -> None:
        assert set(pids) == {0, 1, 2, 3}

    def border(self, iteration: int) -> Border:
        return Border(self._orders.get(iteration))

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        raise AssertionError("no benchmark was asked for")

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        self.lost_ranks.append(ranks)
        return Resumption(self._without[ranks], None) if ranks in self._without else None

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        assert pause_s > 0
        self.resumes.append((layout.generation, iteration))


def make_config(tmp_path, *faults: str, step_deadline_s: float = 30.0) -> JobConfig:
    config = JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=5),
        layout=LayoutSection(tp=1, pp=2, dp=2, num_microbatches=8),
        model=ModelSection(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        run=RunSection(dir=str(tmp_path), verify_every=2, on_death="recover", step_deadline_s=step_deadline_s),
        fault=tuple(map(parse_fault, faults)),
    )
    return msgspec.structs.replace(config, pace=msgspec.structs.replace(config.pace, kind="none"))


def run(config: JobConfig, director: Changing) -> Outcome:
    places = tuple(Place(rank, "here", rank, "cpu") for rank in HOME.members)
    return Supervisor(config, HOME, places, director, lambda: False).run()


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Trained:
    torch.set_num_threads(1)
    return train(make_config(tmp_path_factory.mktemp("reference")), ITERATIONS)


def check_training(director: Changing, reference: Trained) -> None:
    assert [report.iteration for report in director.reports] == list(range(ITERATIONS))
    np.testing.assert_allclose([report.loss for report in director.reports], reference.losses, rtol=1e-9)
    np.testing.assert_allclose([report.grad_norm for report in director.reports], reference.norms, rtol=1e-9)
    for report in director.reports:
        rows, chunks = reduce_events(report.events, report.layout, np.zeros(0, dtype=WORKLOAD), report.iteration, report.window_ns)
        assert rows["rank"].tolist() == list(report.layout.ranks)
        for replica in report.layout.replicas:
            for stage in replica.stages:
                for rank in stage.ranks:
                    assert (chunks["rank"] == rank).sum() == 2 * replica.microbatches


def test_layouts_change_at_borders_and_the_loss_does_not_know(tmp_path, reference):
    director = Changing(ORDERS, {})
    outcome = run(make_config(tmp_path), director)
    assert (outcome.kind, outcome.iterations) == ("done", ITERATIONS)
    assert [report.layout.generation for report in director.reports] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    check_training(director, reference)


LAST_REPLICA_OUT = Layout(4, 8, (two_stages(2, 8, (0,), (1,)),), standby=(2,))
ALONE = Layout(4, 8, (Replica((Stage((0,), (1,), (LayerRange(0, 4),)),), 8),))
DEATHS = {
    "one": (("stop rank 3 from 3",), {(3,): LAST_REPLICA_OUT}, [(3,)]),
    "the first rank": (("stop rank 0 from 5",), {(0,): Layout(4, 8, (two_stages(3, 8, (2, 1), (3,)),))}, [(0,)]),
    "two after each other": (
        ("stop rank 3 from 3", "stop rank 1 from 6"),
        {(3,): Layout(4, 8, (two_stages(2, 3, (0,), (1,)), Replica((Stage((2,), (1,), (LayerRange(0, 4),)),), 5))), (1,): ALONE},
        [(3,), (1,)],
    ),
    "before any step": (("stop rank 2 from 0",), {(2,): Layout(4, 8, (two_stages(2, 8, (0,), (1, 3)),))}, [(2,)]),
}


@pytest.mark.parametrize("name", list(DEATHS))
def test_the_others_go_on_when_a_rank_dies(name, tmp_path, reference):
    faults, without, lost = DEATHS[name]
    director = Changing({}, without)
    outcome = run(make_config(tmp_path, *faults), director)
    assert (outcome.kind, outcome.iterations) == ("done", ITERATIONS)
    assert director.lost_ranks == lost
    assert director.resumes == [(i + 1, int(fault.rsplit(" ", 1)[1])) for i, fault in enumerate(faults)]
    check_training(director, reference)


def test_a_rank_that_hangs_is_fenced_and_left_out(tmp_path, reference):
    director = Changing({}, {(1,): Layout(4, 8, (two_stages(2, 8, (0,), (2, 3)),))})
    assert run(make_config(tmp_path, "hang rank 1 from 4", step_deadline_s=2.0), director).kind == "done"
    check_training(director, reference)


def test_a_death_while_the_layout_changes_leaves_the_old_one_to_start_from(tmp_path, reference):
    """Rank 3 is killed by its own supervisor's order of things: it dies in the iteration after UNEVEN was named, before or after it is in force."""
    director = Changing({2: UNEVEN}, {(3,): LAST_REPLICA_OUT})
    assert run(make_config(tmp_path, "stop rank 3 from 3"), director).kind == "done"
    assert director.resumes == [(2, 3)]
    check_training(director, reference)


def test_without_a_layout_to_go_on_with_the_job_ends_with_the_name_of_the_dead(tmp_path):
    with pytest.raises(JobDied, match=r"rank 3 \(host here, pid \d+\) was killed by SIGKILL in iteration 3"):
        run(make_config(tmp_path, "stop rank 3 from 3"), Changing({}, {}))
