"""A rank that is killed comes back as a standby, works again, and the training does not know."""

from __future__ import annotations

import os
import signal
from itertools import groupby

import numpy as np
import pytest
import torch
from reference import train

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, PaceSection, RunSection
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.records import BenchResult, Place
from lurcher.runtime.messages import Border
from lurcher.runtime.reports import Cut, Resumption, StepReport
from lurcher.runtime.supervisor import Supervisor

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]
ITERATIONS = 32
VICTIM = 2


def alike(*ranks: int) -> Layout:
    """Every rank is a replica of its own."""
    counts = [8 // len(ranks) + (i < 8 % len(ranks)) for i in range(len(ranks))]
    stages = [Stage((rank,), (1,), (LayerRange(0, 2),)) for rank in ranks]
    return Layout(2, 8, tuple(Replica((stage,), count) for stage, count in zip(stages, counts, strict=True)))


class Readmits:
    """Kills the victim in iteration 3, wants it back at once, benchmarks it, and gives it work again."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.pids: dict[int, int] = {}
        self.revived_at = -1
        self.benched_ranks: list[int] = []
        self.orders = [Border(bench=(VICTIM,)), Border(alike(0, 1, VICTIM, 3))]

    def started(self, pids: dict[int, int]) -> None:
        self.pids = pids

    def border(self, iteration: int) -> Border:
        return self.orders.pop(0) if self.revived_at >= 0 and self.orders else Border()

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)
        if report.iteration == 3:
            os.kill(self.pids[VICTIM], signal.SIGKILL)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        assert missing == ()
        self.benched_ranks += [rank for result in results for rank in result.component.ranks]

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        assert ranks == (VICTIM,) and "SIGKILL" in why
        return Resumption(alike(0, 1, 3), None)

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        assert layout.members == (0, 1, 3)

    def returning(self, absent: tuple[int, ...]) -> tuple[int, ...]:
        return absent

    def revived(self, rank: int, pid: int) -> None:
        assert rank == VICTIM and pid != self.pids[VICTIM]
        self.revived_at = self.reports[-1].iteration


def test_a_killed_rank_comes_back_and_works_again(tmp_path):
    config = JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=5),
        layout=LayoutSection(tp=1, pp=1, dp=4, num_microbatches=8),
        model=ModelSection(num_layers=2, hidden=16, num_heads=4, num_kv_heads=2, ffn_blocks=2, ffn_block_size=8, vocab_block_size=24, seq_len=16),
        pace=PaceSection(kind="emulated", token_us=400.0),
        run=RunSection(dir=str(tmp_path), verify_every=1, on_death="recover", step_deadline_s=30.0, respawn=True),
    )
    director = Readmits()
    layout = alike(0, 1, 2, 3)
    outcome = Supervisor(config, layout, tuple(Place(rank, "here", rank) for rank in layout.members), director, lambda: False).run()
    assert (outcome.kind, outcome.iterations) == ("done", ITERATIONS)
    assert director.benched_ranks == [VICTIM]
    ways = [(report.layout.ranks, report.layout.standby) for report in director.reports]
    assert [way for way, _ in groupby(ways)] == [((0, 1, 2, 3), ()), ((0, 1, 3), ()), ((0, 1, 3), (2,)), ((0, 1, 2, 3), ())]
    torch.set_num_threads(1)
    reference = train(config, ITERATIONS)
    assert [report.iteration for report in director.reports] == list(range(ITERATIONS))
    np.testing.assert_allclose([report.loss for report in director.reports], reference.losses, rtol=1e-9)
    np.testing.assert_allclose([report.grad_norm for report in director.reports], reference.norms, rtol=1e-9)
