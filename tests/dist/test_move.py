"""Any layout to any other while training goes on: the training stays that of one plain torch process, and only what ranks lack moves."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
import torch
from comparison import owners_of_slices, worst_error
from reference import Trained
from spawned import Job, RankResult, key_of, references_of, run_jobs
from test_exact import NUM_LAYERS, NUM_MICROBATCHES, TP2, built, make_config, uniform

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.runtime.shapes import held_tensors

RANDOM_CHAINS = 6
MAX_TP = 4
"""Atoms of the smallest kind: every rank of a stage needs one."""


def pieces_of(rng: random.Random, total: int, num: int) -> list[int]:
    """`total` as `num` random parts of 1 and more."""
    cuts = sorted(rng.sample(range(1, total), num - 1))
    return [b - a for a, b in pairwise((0, *cuts, total))]


def random_layout(rng: random.Random, num_ranks: int) -> Layout:
    """Replicas, stages, tensor degrees, shares, layers, split and standby ranks as they come; ranks in any order."""
    ranks = rng.sample(range(num_ranks), num_ranks)
    num_standby = rng.choice([0, 0, 0, 1]) if num_ranks > 2 else 0
    standby, working = ranks[:num_standby], ranks[num_standby:]
    replicas = []
    num_replicas = rng.randint(max(1, -(-len(working) // (NUM_LAYERS * MAX_TP))), min(3, len(working)))
    counts = [n - 1 for n in pieces_of(rng, NUM_MICROBATCHES + num_replicas, num_replicas)]
    for size, microbatches in zip(pieces_of(rng, len(working), num_replicas), counts, strict=True):
        mine, working = working[:size], working[size:]
        num_stages = rng.randint(-(-size // MAX_TP), min(size, NUM_LAYERS))
        sizes = next(sizes for _ in iter(int, 1) if max(sizes := pieces_of(rng, size, num_stages)) <= MAX_TP)
        stages, layer = [], 0
        for tp, num_layers in zip(sizes, pieces_of(rng, NUM_LAYERS, num_stages), strict=True):
            shares = tuple(rng.choice([1, 1, 2]) for _ in range(tp)) if tp < MAX_TP else (1,) * tp
            stages.append(Stage(tuple(mine[:tp]), shares, (LayerRange(layer, layer + num_layers),)))
            mine, layer = mine[tp:], layer + num_layers
        replicas.append(Replica(tuple(stages), microbatches))
    return Layout(NUM_LAYERS, NUM_MICROBATCHES, tuple(replicas), tuple(sorted(standby)))


def random_chain(seed: int) -> Job:
    rng = random.Random(seed)
    num_ranks = rng.choice([2, 3, 5, 8, 8])
    layouts = [random_layout(rng, num_ranks) for _ in range(5)]
    changes = tuple(zip((1, 3, 4, 8), layouts[1:], strict=True))
    return Job(f"chain-{seed}", make_config(tied=seed % 2 == 1, bucketed=seed % 3 == 0), layouts[0], layouts=changes)


def with_standby(layout: Layout, *standby: int) -> Layout:
    return msgspec.structs.replace(layout, standby=standby)


JOBS = [
    Job("layers-of-one-replica", make_config(), uniform(2, 2, 2), layouts=((4, built((4, 4), [(2, TP2), (2, TP2)], [(1, TP2), (3, TP2)])),)),
    Job(
        "shares", make_config(), uniform(2, 2, 2), layouts=((2, built((5, 3), [(2, TP2), (2, TP2)], [(2, (3, 1)), (2, TP2)])), (6, uniform(2, 2, 2)))
    ),
    Job(
        "tp4-to-tp3-with-a-standby", make_config(), uniform(4, 1, 2), layouts=((3, with_standby(built((5, 3), [(4, (1,) * 4)], [(4, (1,) * 3)]), 7)),)
    ),
    Job("standby-comes-in", make_config(tied=True), with_standby(built((8,), [(4, (1,))]), 1), layouts=((5, uniform(1, 2, 1)),)),
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


@every_job
def test_state_equals_the_single_process(name, results, references):
    job = BY_NAME[name]
    last = job.layout_at(job.iterations, job.layouts[-1][1])
    working = {rank: result for rank, result in results[name].items() if rank in last.ranks}
    errors = worst_error(working, references[key_of(job)])
    print(name, {kind: f"{error:.1e}" for kind, error in errors.items()})
    assert max(errors.values()) <= 1e-9, errors
    assert all(not result.state for rank, result in results[name].items() if rank not in last.ranks)


@every_job
def test_losses_and_norms_equal_the_single_process(name, results, references):
    job, layout = BY_NAME[name], BY_NAME[name].layout
    reference = references[key_of(job)]
    for iteration in range(job.iterations):
        layout = job.layout_at(iteration, layout)
        for rank, result in results[name].items():
            if rank in layout.ranks:
                assert result.losses[iteration] == pytest.approx(reference.losses[iteration], rel=1e-9)
                assert result.norms[iteration] == pytest.approx(reference.norms[iteration], rel=1e-9)


@every_job
def test_all_owners_of_a_slice_hold_the_same_bits(name, results):
    assert owners_of_slices(results[name])


def atoms_of(layout: Layout, rank: int, model) -> dict[tuple[str, int], int]:
    """What a rank holds: elements by tensor and atom."""
    return {(h.spec.name, atom): h.spec.atom_size for h in held_tensors(model, layout, rank) for atom in range(h.first, h.end)}


@every_job
def test_the_bytes_that_arrive_are_those_that_each_rank_lacked(name, results):
    job = BY_NAME[name]
    layouts = [job.layout, *(layout for _, layout in job.layouts)]
    num_states, num_bytes = 3, 8
    lacked: dict[int, list[int]] = defaultdict(list)
    for before, after in pairwise(layouts):
        for rank in job.all_ranks:
            had, needs = atoms_of(before, rank, job.config.model), atoms_of(after, rank, job.config.model)
            lacked[rank].append(num_states * num_bytes * sum(size for atom, size in needs.items() if atom not in had))
    assert {rank: result.received_bytes for rank, result in results[name].items()} == lacked
    assert any(sum(sizes) for sizes in lacked.values())


@every_job
def test_all_ranks_make_the_same_plan_out_of_each_layout(name, results):
    plans = [result.plans for result in results[name].values()]
    assert all(mine == plans[0] for mine in plans)
    assert len(plans[0]) == len(BY_NAME[name].layouts) and all(plans[0])
