"""Whole jobs that lose ranks and go on as the planner says: a smaller group and a rank that stands by, and back to copies where a stage is gone."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import train

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, PaceSection, RunSection, layout_of
from lurcher.control.death import UNMEASURED, Way, way_on
from lurcher.layout import Layout
from lurcher.records import BenchResult, Place
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.reports import Resumption, StepReport
from lurcher.runtime.supervisor import Supervisor

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]
ITERATIONS = 10
COPY_EVERY = 3


class Planned:
    """Kills ranks after iterations, goes on as the planner says, and keeps what it is told."""

    def __init__(self, config: JobConfig, strikes: dict[int, tuple[int, ...]]) -> None:
        self._config, self._strikes = config, strikes
        self._pids: dict[int, int] = {}
        self.reports: list[StepReport] = []
        self.num_descriptors: list[int] = []
        self.losses: list[tuple[tuple[int, ...], int, Way]] = []
        self.resumes: list[int] = []

    def started(self, pids: dict[int, int]) -> None:
        self._pids = pids

    def border(self, iteration: int) -> Border:
        return Border()

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)
        self.num_descriptors.append(len(os.listdir("/proc/self/fd")))
        for rank in self._strikes.pop(report.iteration, ()):
            os.kill(self._pids[rank], signal.SIGKILL)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        raise AssertionError("no benchmark was asked for")

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        way = way_on(self._config.model, layout, ranks, UNMEASURED, self._config.layout.schedule, iteration, cut)
        self.losses.append((ranks, iteration, way))
        return None if way.plan is None else Resumption(way.plan.layout, way.cut)

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        self.resumes.append(iteration)


class Seen(NamedTuple):
    """One job to its end, with the losses and norms of the same training by one process."""

    director: Planned
    expected: list[tuple[float, float]]


def run(folder, strikes: dict[int, tuple[int, ...]], tp: int, pp: int, dp: int) -> Seen:
    config = JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=5),
        layout=LayoutSection(tp=tp, pp=pp, dp=dp, num_microbatches=8),
        model=ModelSection(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        pace=PaceSection(kind="none"),
        run=RunSection(dir=str(folder), verify_every=1, on_death="recover", copy_every=COPY_EVERY),
    )
    torch.set_num_threads(1)
    trained = train(config, ITERATIONS)
    director, layout = Planned(config, strikes), layout_of(config)
    places = tuple(Place(rank, f"node{rank // 4}", rank % 4, "cpu") for rank in layout.members)
    assert Supervisor(config, layout, places, director, lambda: False).run().kind == "done"
    return Seen(director, list(zip(trained.losses, trained.norms, strict=True)))


def check_figures(seen: Seen) -> None:
    """Of every iteration that was computed, once or again."""
    for report in seen.director.reports:
        np.testing.assert_allclose((report.loss, report.grad_norm), seen.expected[report.iteration], rtol=1e-9)


def test_a_group_of_four_goes_on_with_two_and_the_second_death_takes_the_one_that_stands_by(tmp_path):
    """Four KV groups on three ranks take as long as on two: so one stands by, and replaces the next rank that dies."""
    seen = run(tmp_path, {2: (2,), 5: (0,)}, tp=4, pp=1, dp=2)
    layouts = {report.layout.generation: report.layout for report in seen.director.reports}
    groups = [layouts[generation].replicas[0].stages[0].ranks for generation in sorted(layouts)]
    assert groups == [(0, 1, 2, 3), (0, 1), (1, 3)]
    assert [layouts[generation].standby for generation in sorted(layouts)] == [(), (3,), ()]
    assert [(ranks, iteration, way.cut) for ranks, iteration, way in seen.director.losses] == [((2,), 3, None), ((0,), 6, None)]
    assert [report.iteration for report in seen.director.reports] == list(range(ITERATIONS))
    check_figures(seen)
    # A pipe, and the two ends of another that tells that the process has ended: nothing of a lost rank stays open.
    assert seen.director.num_descriptors[0] - seen.director.num_descriptors[-1] >= 2 * 3


def test_when_all_owners_of_a_stage_are_lost_all_go_back_to_their_copies(tmp_path):
    """Ranks 1 and 3 are the second stage of both replicas; copies of what they held are with ranks 0 and 2."""
    seen = run(tmp_path, {4: (1, 3)}, tp=1, pp=2, dp=2)
    ranks, iteration, way = seen.director.losses[-1]
    assert (ranks, iteration) == ((1, 3), 5) and way.cut is not None
    assert iteration - COPY_EVERY <= way.cut.iteration < iteration
    assert f"all go back to iteration {way.cut.iteration}" in way.reason and "computed again" in way.reason
    assert seen.director.resumes[-1] == way.cut.iteration
    iterations = [report.iteration for report in seen.director.reports]
    assert iterations == [*range(iteration), *range(way.cut.iteration, ITERATIONS)]
    check_figures(seen)
