"""A whole job, supervisor and ranks, whose layout changes at borders: all iterations count, and the loss is that of one process."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from reference import train

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, RunSection
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.records import WORKLOAD, BenchResult, Place
from lurcher.runtime.messages import Border
from lurcher.runtime.reports import StepReport
from lurcher.runtime.supervisor import Supervisor
from lurcher.track.reduce import reduce_events

pytestmark = pytest.mark.timeout(120)
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
    """Orders the layouts above at their borders, and keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def started(self, pids: dict[int, int]) -> None:
        assert set(pids) == {0, 1, 2, 3}

    def border(self, iteration: int) -> Border:
        return Border(ORDERS.get(iteration))

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        raise AssertionError("no benchmark was asked for")


def test_layouts_change_at_borders_and_the_loss_does_not_know(tmp_path):
    config = JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=5),
        layout=LayoutSection(tp=1, pp=2, dp=2, num_microbatches=8),
        model=ModelSection(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        run=RunSection(dir=str(tmp_path), verify_every=2),
    )
    config = msgspec.structs.replace(config, pace=msgspec.structs.replace(config.pace, kind="none"))
    director = Changing()
    places = tuple(Place(rank, "here", rank, "cpu") for rank in HOME.members)
    outcome = Supervisor(config, HOME, places, director, lambda: False).run()
    assert (outcome.kind, outcome.iterations) == ("done", ITERATIONS)
    torch.set_num_threads(1)
    reference = train(config, ITERATIONS)
    np.testing.assert_allclose([report.loss for report in director.reports], reference.losses, rtol=1e-9)
    np.testing.assert_allclose([report.grad_norm for report in director.reports], reference.norms, rtol=1e-9)
    assert [report.layout.generation for report in director.reports] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    for report in director.reports:
        rows, chunks = reduce_events(report.events, report.layout, np.zeros(0, dtype=WORKLOAD), report.iteration, report.window_ns)
        assert rows["rank"].tolist() == list(report.layout.ranks)
        for replica in report.layout.replicas:
            for stage in replica.stages:
                for rank in stage.ranks:
                    assert (chunks["rank"] == rank).sum() == 2 * replica.microbatches
