"""Micro-batches that run parts of their way in other replicas, stages without ranks, and borders between unlike tensor degrees: still the
training of one plain torch process, every layer of every micro-batch once, and no byte sent twice."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import msgspec
import numpy as np
import pytest
import torch
from comparison import owners_of_slices, worst_error
from reference import Trained
from routed_layouts import crossings_of, routed, runs_of, shuffled
from spawned import Job, RankResult, key_of, references_of, run_jobs
from test_exact import NUM_LAYERS, NUM_MICROBATCHES, TP2, built, make_config, uniform
from test_move import random_layout

from lurcher.config import JobConfig
from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.records import Op

RANDOM_CHAINS = 6
ONE = (1,)


def with_routes(layout: Layout, *routes: tuple[int, int, int, int, int]) -> Layout:
    """`routes` as (micro-batch, first layer, end, replica, stage)."""
    return msgspec.structs.replace(layout, routes=tuple(Route(m, LayerRange(a, b), d, s) for m, a, b, d, s in routes))


def dead_stage(stage: int) -> Layout:
    """TP1 PP2 DP2 whose second replica has lost one stage; its rank stands by. All its micro-batches run that stage in the first replica."""
    home = uniform(1, 2, 2)
    replica = home.replicas[1]
    gone = replica.stages[stage]
    stages = tuple(Stage((), (), s.chunks) if s is gone else s for s in replica.stages)
    routes = tuple(Route(m, gone.chunks[0], 0, stage) for m in home.microbatches_of(1))
    return msgspec.structs.replace(home, replicas=(home.replicas[0], Replica(stages, replica.microbatches)), standby=gone.ranks, routes=routes)


def random_chain(seed: int) -> Job:
    rng = random.Random(seed)
    num_ranks = rng.choice([2, 3, 5, 8, 8])
    layouts = [routed(rng, random_layout(rng, num_ranks)) for _ in range(5)]
    layouts = [shuffled(rng, layout) if layout.routes and rng.random() < 0.5 else layout for layout in layouts]
    changes = tuple(zip((2, 3, 5, 6), layouts[1:], strict=True))
    schedule = rng.choice(["1f1b", "1f1b", "gpipe"])
    return Job(f"chain-{seed}", make_config(tied=seed % 2 == 1, bucketed=seed % 3 == 0, schedule=schedule), layouts[0], 8, layouts=changes)


JOBS = [
    Job("dead-last-stage", make_config(), uniform(1, 2, 2), 6, layouts=((2, dead_stage(1)), (4, uniform(1, 2, 2)))),
    Job("dead-first-stage-tied", make_config(tied=True), dead_stage(0), 4),
    Job(
        "there-and-back-again",
        make_config(),
        with_routes(
            built((5, 3), [(4, ONE)], [(2, ONE), (2, TP2)]), (0, 1, 2, 1, 0), (1, 0, 1, 1, 0), (1, 1, 2, 1, 0), (1, 3, 4, 1, 1), (6, 1, 2, 0, 0)
        ),
        4,
    ),
    Job("tp4-to-tp1-to-tp3", make_config(), built((8,), [(1, (1, 1, 1, 1)), (1, ONE), (2, (2, 1, 1))]), 4),
    Job(
        "routes-between-degrees",
        make_config(),
        with_routes(built((4, 4), [(2, TP2), (2, ONE)], [(2, (1, 1, 1)), (2, TP2)]), (0, 2, 4, 1, 1), (5, 0, 2, 0, 0)),
        4,
    ),
    *map(random_chain, range(RANDOM_CHAINS)),
]
BY_NAME = {job.name: job for job in JOBS}
every_job = pytest.mark.parametrize("name", list(BY_NAME))


@pytest.fixture(scope="module")
def results() -> dict[str, dict[int, RankResult]]:
    return run_jobs(JOBS)


@pytest.fixture(scope="module")
def references() -> dict[bytes, Trained]:
    return references_of(JOBS)


def layouts_of(job: Job) -> list[Layout]:
    """The layout of every iteration."""
    found, layout = [], job.layout
    for iteration in range(job.iterations):
        layout = job.layout_at(iteration, layout)
        found.append(layout)
    return found


@every_job
def test_state_equals_the_single_process_and_owners_hold_the_same_bits(name, results, references):
    job = BY_NAME[name]
    last = layouts_of(job)[-1]
    errors = worst_error({rank: result for rank, result in results[name].items() if rank in last.ranks}, references[key_of(job)])
    print(name, {kind: f"{error:.1e}" for kind, error in errors.items()})
    assert max(errors.values()) <= 1e-9, errors
    assert owners_of_slices(results[name])


@every_job
def test_losses_and_norms_equal_the_single_process(name, results, references):
    job = BY_NAME[name]
    for iteration, layout in enumerate(layouts_of(job)):
        for rank in layout.ranks:
            result = results[name][rank]
            assert result.losses[iteration] == pytest.approx(references[key_of(job)].losses[iteration], rel=1e-9)
            assert result.norms[iteration] == pytest.approx(references[key_of(job)].norms[iteration], rel=1e-9)
            assert result.losses[iteration] == results[name][layout.ranks[0]].losses[iteration]


@every_job
def test_every_layer_of_every_microbatch_is_run_once_by_the_stage_that_the_layout_names(name, results):
    """The ledger of work: chunks as the events tell them, against the ways that `Layout.executor` tells."""
    job = BY_NAME[name]
    for iteration, layout in enumerate(layouts_of(job)):
        ways = {m: runs_of(layout, m) for m in range(NUM_MICROBATCHES)}
        assert all([layer for run in way for layer in range(run.first, run.end)] == list(range(NUM_LAYERS)) for way in ways.values())
        expected = Counter(
            (rank, m, int(op), run.number)
            for m, way in ways.items()
            for run in way
            for rank in layout.replicas[run.place[0]].stages[run.place[1]].ranks
            for op in (Op.FORWARD, Op.BACKWARD)
        )
        events = np.concatenate([result.events[iteration] for result in results[name].values()])
        chunks = events[(events["op"] == Op.FORWARD) | (events["op"] == Op.BACKWARD)]
        assert Counter(zip(*(chunks[field].tolist() for field in ("rank", "seq", "op", "peer")), strict=True)) == expected


@every_job
def test_between_unlike_stages_one_copy_crosses_each_way_and_every_transfer_has_two_ends(name, results):
    job = BY_NAME[name]
    config: JobConfig = job.config
    num_bytes = config.model.seq_len * config.model.hidden * 8
    for iteration, layout in enumerate(layouts_of(job)):
        expected: Counter[tuple[int, int]] = Counter()
        for m in range(NUM_MICROBATCHES):
            for layer, left, right in crossings_of(layout, m):
                for way in range(2):
                    copies = len(left) if len(left) == len(right) else 1
                    expected[2 * ((iteration * NUM_MICROBATCHES + m) * NUM_LAYERS + layer) + way] += copies * num_bytes
        sent, ends = Counter(), defaultdict(list)
        for rank, result in results[name].items():
            for e in result.events[iteration]:
                if e["op"] == Op.SEND:
                    sent[int(e["seq"])] += int(e["num_bytes"])
                    ends[rank, int(e["peer"]), int(e["seq"]), int(e["num_bytes"])].append("sent")
                elif e["op"] == Op.RECV:
                    ends[int(e["peer"]), rank, int(e["seq"]), int(e["num_bytes"])].append("received")
        assert sent == expected
        assert all(sorted(both) == ["received", "sent"] for both in ends.values())


def test_the_random_chains_have_routes_empty_stages_and_mixed_borders():
    layouts = [layout for job in JOBS if job.name.startswith("chain") for layout in (job.layout, *(layout for _, layout in job.layouts))]
    assert sum(bool(layout.routes) for layout in layouts) >= len(layouts) // 3
    assert any(layout.order for layout in layouts) and any(layout.routes and not layout.order for layout in layouts)
    assert sum(any(not stage.ranks for _, _, stage in layout.stages()) for layout in layouts) >= 5
    mixed = [len(a) != len(b) for layout in layouts for m in range(NUM_MICROBATCHES) for _, a, b in crossings_of(layout, m)]
    assert any(mixed) and not all(mixed)
