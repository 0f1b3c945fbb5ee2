"""A whole job whose rank dies and whose stage then has none: the other replica runs it for both, and the records say who did what."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from reference import Trained, train
from routed_layouts import runs_of
from test_relayout import HOME, ITERATIONS, Changing, make_config, run

from lurcher.layout import Layout, Replica, Route, Stage
from lurcher.model.program import ALIKE, ordered
from lurcher.records import CHUNK, Op
from lurcher.runtime.data import Loader
from lurcher.runtime.reports import StepReport
from lurcher.track.reduce import reduce_events

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]


def without_rank_3() -> Layout:
    """Rank 3 was the second stage of the second replica; its four micro-batches run that stage on rank 1."""
    first, second = HOME.replicas
    stages = (second.stages[0], Stage((), (), second.stages[1].chunks))
    routes = tuple(Route(m, second.stages[1].chunks[0], 0, 1) for m in HOME.microbatches_of(1))
    return ordered(Layout(4, 8, (first, Replica(stages, 4)), routes=routes), ALIKE, "1f1b")


ROUTED = without_rank_3()


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Trained:
    torch.set_num_threads(1)
    return train(make_config(tmp_path_factory.mktemp("reference")), ITERATIONS)


def check_work(report: StepReport, loader: Loader) -> None:
    """Chunks and micro-batches of every rank as `Layout.executor` tells them."""
    rows, chunks = reduce_events(report.events, report.layout, loader.workload(report.iteration), report.iteration, report.window_ns)
    assert chunks.dtype == CHUNK
    ran = Counter(zip(*(chunks[name].tolist() for name in ("rank", "microbatch", "phase")), strict=True))
    runs = [(m, one) for m in range(8) for one in runs_of(report.layout, m)]
    expected = Counter(
        (rank, m, int(op))
        for m, one in runs
        for rank in report.layout.replicas[one.place[0]].stages[one.place[1]].ranks
        for op in (Op.FORWARD, Op.BACKWARD)
    )
    assert ran == expected
    tokens = {rank: 32 * count // 2 for rank, count in Counter(rank for rank, _, _ in expected.elements()).items()}
    assert dict(zip(rows["rank"].tolist(), rows["num_tokens"].tolist(), strict=True)) == tokens
    for name in ("busy_s", "wait_s", "transfer_pp_s"):
        assert np.all(rows[name] >= 0) and np.all(rows[name] <= rows["duration_s"])
    told = rows["busy_s"] + rows["wait_s"] + rows["input_s"] + sum(rows[f"transfer_{kind}_s"] for kind in ("tp", "dp", "pp", "world"))
    np.testing.assert_allclose(told, rows["duration_s"], rtol=1e-6)


def test_a_dead_stage_is_run_by_the_other_replica_and_the_training_is_the_same(tmp_path, reference):
    config = make_config(tmp_path, "stop rank 3 from 3")
    director = Changing({}, {(3,): ROUTED})
    assert run(config, director).kind == "done"
    assert [report.iteration for report in director.reports] == list(range(ITERATIONS))
    np.testing.assert_allclose([report.loss for report in director.reports], reference.losses, rtol=1e-9)
    np.testing.assert_allclose([report.grad_norm for report in director.reports], reference.norms, rtol=1e-9)
    assert [report.layout.routes != () for report in director.reports] == [False] * 3 + [True] * (ITERATIONS - 3)
    assert all(report.layout == msgspec.structs.replace(ROUTED, generation=1) for report in director.reports[3:])
    loader = Loader(config.job.corpus, config.job.seed, config.model.seq_len, 8, bucketed=config.job.bucketed)
    for report in director.reports:
        check_work(report, loader)
