"""The last owner of an atom dies: all go back to the last cut, bit for bit, and the training is still that of one plain torch process."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import numpy as np
import pytest
import torch
from comparison import owners_of_slices, worst_error
from deaths import Death, MortalJob, MortalResult, run_mortal
from reference import Trained, train
from spawned import run_jobs
from test_exact import NUM_LAYERS, NUM_MICROBATCHES, built, make_config, uniform
from test_move import atoms_of, random_layout

from lurcher.config import ModelSection
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.records import Op
from lurcher.runtime.copies import choose_holders

RANDOM_JOBS = 4


def of(split: tuple[int, ...], *replicas: list[tuple[int, tuple[int, ...]]], standby: tuple[int, ...] = ()) -> Layout:
    """A layout by hand: per replica its stages as (layers, ranks)."""
    made = []
    for stages, microbatches in zip(replicas, split, strict=True):
        layer, parts = 0, []
        for num_layers, ranks in stages:
            parts.append(Stage(ranks, (1,) * len(ranks), (LayerRange(layer, layer + num_layers),)))
            layer += num_layers
        made.append(Replica(tuple(parts), microbatches))
    return Layout(NUM_LAYERS, NUM_MICROBATCHES, tuple(made), standby)


def renamed(layout: Layout, names: dict[int, int]) -> Layout:
    """The layout with other ranks."""
    replicas = tuple(
        Replica(tuple(Stage(tuple(names[r] for r in stage.ranks), stage.shares, stage.chunks) for stage in replica.stages), replica.microbatches)
        for replica in layout.replicas
    )
    return msgspec.structs.replace(layout, replicas=replicas, standby=tuple(sorted(names[r] for r in layout.standby)))


def random_job(seed: int) -> MortalJob:
    """Two or three deaths of whatever ranks may go; back to the last cut where the others do not hold the whole model, and sometimes where they do.

    What is held is counted here from the layouts alone.
    """
    rng = random.Random(seed)
    num_ranks, copy_every, iterations = rng.choice([3, 4, 4]), rng.choice([1, 2, 3]), 9
    config = make_config(tied=seed % 2 == 1)
    first = layout = random_layout(rng, num_ranks)
    deaths: list[Death] = []
    cut: tuple[int, Layout, set[int]] = (0, layout, set())
    at = rng.randint(2, 5)
    while len(deaths) < 3 and len(layout.members) > 1 and at < iterations:
        last = max((c for c in range(copy_every, at, copy_every) if c > (deaths[-1].back_to or deaths[-1].iteration if deaths else 0)), default=None)
        if last is not None:
            cut = (last, layout, set())
        victims = next((v for v in every_choice(rng, layout) if is_kept(config.model, cut, set(v))), None)
        if victims is None:
            break
        alive = [rank for rank in layout.members if rank not in victims]
        after = renamed(random_layout(rng, len(alive)), dict(enumerate(alive)))
        needs_cut = not is_held(config.model, layout, set(alive))
        back_to = cut[0] if needs_cut or rng.random() < 0.3 else None
        deaths.append(Death(at, victims, after, back_to))
        cut[2].update(victims)
        layout = after
        at = (at if back_to is None else back_to) + rng.randint(1, 4)
    return MortalJob(f"random-{seed}", config, first, copy_every, tuple(deaths), iterations)


def every_choice(rng: random.Random, layout: Layout) -> list[tuple[int, ...]]:
    return [tuple(sorted(rng.sample(layout.members, rng.randint(1, max(1, len(layout.members) // 2))))) for _ in range(10)]


def is_held(model: ModelSection, layout: Layout, alive: set[int]) -> bool:
    everything = set().union(*(atoms_of(layout, rank, model) for rank in layout.members))
    return everything == set().union(*(atoms_of(layout, rank, model) for rank in alive))


def is_kept(model: ModelSection, cut: tuple[int, Layout, set[int]], victims: set[int]) -> bool:
    iteration, layout, gone = cut
    everything = set().union(*(atoms_of(layout, rank, model) for rank in layout.members))
    return iteration == 0 or everything == set().union(*kept(model, layout, set(layout.members) - gone - victims).values())


def kept(model: ModelSection, layout: Layout, alive: set[int]) -> dict[int, set[tuple[str, int]]]:
    """What each living rank has of a cut under a layout: its own, and its ward's."""
    found = {rank: set(atoms_of(layout, rank, model)) for rank in alive}
    for rank, holder in choose_holders(layout, dict.fromkeys(layout.members, "here")).items():
        if holder in alive:
            found[holder] |= set(atoms_of(layout, rank, model))
    return found


TWO, FOUR = uniform(1, 2, 1), uniform(1, 4, 1)
JOBS = [
    MortalJob("nobody-dies", make_config(), uniform(1, 2, 2), 2, ()),
    MortalJob(
        "a-standby-becomes-the-stage-that-died",
        make_config(),
        msgspec.structs.replace(TWO, standby=(2,)),
        3,
        (Death(5, (1,), of((8,), [(2, (0,)), (2, (2,))]), back_to=3),),
    ),
    MortalJob("one-of-two-is-left", make_config(tied=True), TWO, 2, (Death(5, (0,), of((8,), [(4, (1,))]), back_to=4),)),
    MortalJob("before-the-first-copy", make_config(), TWO, 5, (Death(2, (1,), of((8,), [(4, (0,))]), back_to=0),)),
    MortalJob(
        "every-death-is-a-last-owner",
        make_config(),
        FOUR,
        2,
        (
            Death(3, (2,), of((8,), [(1, (0,)), (1, (1,)), (2, (3,))]), back_to=2),
            Death(5, (0,), of((8,), [(2, (3,)), (2, (1,))]), back_to=4),
            Death(7, (3,), of((8,), [(4, (1,))]), back_to=6),
        ),
    ),
    MortalJob(
        "twice-from-one-cut",
        make_config(),
        FOUR,
        4,
        (
            Death(6, (2,), of((8,), [(1, (0,)), (1, (1,)), (2, (3,))]), back_to=4),
            Death(5, (3,), of((8,), [(2, (1,)), (2, (0,))]), back_to=4),
        ),
    ),
    MortalJob(
        "one-replica-dies-then-the-last-one-of-a-stage",
        make_config(tied=True),
        uniform(1, 2, 2),
        3,
        (Death(4, (0,), of((8,), [(2, (2,)), (2, (1, 3))])), Death(5, (2,), of((3, 5), [(4, (3,))], [(4, (1,))]), back_to=3)),
    ),
    MortalJob(
        "both-replicas-of-a-stage-after-a-change",
        make_config(),
        uniform(1, 2, 2),
        2,
        (Death(5, (0, 2), of((5, 3), [(4, (3,))], [(4, (1,))]), back_to=4),),
        changes=((3, of((6, 2), [(3, (0,)), (1, (1,))], [(1, (2,)), (3, (3,))])),),
    ),
    MortalJob(
        "the-cut-is-of-the-layout-before",
        make_config(),
        uniform(2, 2, 1),
        2,
        (Death(5, (1,), of((8,), [(1, (3, 0)), (3, (2,))]), back_to=4),),
        changes=((5, built((8,), [(3, (2, 1)), (1, (1,))])), (6, of((8,), [(2, (0, 2)), (2, (3,))]))),
    ),
    MortalJob(
        "in-the-copy",
        make_config(),
        FOUR,
        2,
        (
            Death(4, (1,), of((8,), [(1, (0,)), (1, (2,)), (2, (3,))]), back_to=2, in_copy=True),
            Death(5, (3,), of((8,), [(2, (0,)), (2, (2,))]), back_to=4),
        ),
    ),
    MortalJob(
        "on-after-a-copy-that-some-ranks-lack",
        make_config(),
        uniform(1, 2, 2),
        2,
        (
            Death(4, (0,), of((8,), [(2, (2,)), (2, (1, 3))]), in_copy=True),
            Death(5, (2,), of((3, 5), [(4, (3,))], [(4, (1,))]), back_to=2),
        ),
    ),
    *map(random_job, range(RANDOM_JOBS)),
]
BY_NAME = {job.name: job for job in JOBS}
every_job = pytest.mark.parametrize("name", list(BY_NAME))


@pytest.fixture(scope="module")
def results() -> dict[str, dict[int, MortalResult]]:
    return run_jobs(JOBS, run_mortal)


@pytest.fixture(scope="module")
def references() -> dict[bytes, Trained]:
    torch.set_num_threads(1)
    return {key: train(job.config, job.iterations) for key, job in {key_of(job): job for job in JOBS}.items()}


def key_of(job: MortalJob) -> bytes:
    return msgspec.json.encode((job.config.model, job.config.job, job.iterations))


def living(job: MortalJob, results: dict[int, MortalResult]) -> dict[int, MortalResult]:
    dead = {rank for death in job.deaths for rank in death.ranks}
    return {rank: result for rank, result in results.items() if rank not in dead}


@every_job
def test_state_losses_and_steps_equal_the_single_process(name, results, references):
    job = BY_NAME[name]
    left = living(job, results[name])
    reference = references[key_of(job)]
    states = {rank: result for rank, result in left.items() if result.state}
    expected = reference._replace(state={kind: value for kind, value in reference.state.items() if not kind.startswith("grad/")})
    errors = worst_error(states, expected)
    assert max(errors.values()) <= 1e-9, errors
    assert owners_of_slices(states)
    for result in left.values():
        assert result.num_steps == job.iterations and len(result.losses) == job.iterations
        known = ~np.isnan(result.losses)
        np.testing.assert_allclose(np.array(result.losses)[known], np.array(reference.losses)[known], rtol=1e-9)
        np.testing.assert_allclose(np.array(result.norms)[known], np.array(reference.norms)[known], rtol=1e-9)


@every_job
def test_what_comes_back_has_the_bits_of_the_cut(name, results):
    job = BY_NAME[name]
    back = [death for death in job.deaths if death.back_to]
    seen = 0
    for rank, result in results[name].items():
        mine = [death for death in job.deaths if death.back_to is not None and not dead_before(job, rank, death)]
        for death, atoms in zip(mine, result.restored, strict=True):
            assert set(atoms) == {
                (kind, *atom) for kind in ("param", "exp_avg", "exp_avg_sq") for atom in atoms_of(death.layout, rank, job.config.model)
            }
            if death in back:
                taken = {atom: digest for other in results[name].values() for atom, digest in other.taken.get(death.back_to, {}).items()}
                assert all(taken[atom] == digest for atom, digest in atoms.items())
                seen += len(atoms)
    assert seen or not back


def dead_before(job: MortalJob, rank: int, death: Death) -> bool:
    upto = job.deaths[: job.deaths.index(death) + 1]
    return any(rank in other.ranks for other in upto)


@every_job
def test_what_arrives_is_what_each_rank_lacked(name, results):
    """Of the state before, or of what it kept of the cut; counted from the layouts alone."""
    job = BY_NAME[name]
    num_states, num_bytes = 3, 8
    lacked: dict[int, list[int]] = defaultdict(list)
    layout, changes, iteration, cuts, gone, missed = job.layout, list(job.changes), 0, {}, set(), set()
    for death in job.deaths:
        while iteration < death.iteration or (changes and changes[0][0] == iteration):
            if changes and changes[0][0] == iteration:
                layout = changes.pop(0)[1]
            if iteration and iteration % job.copy_every == 0 and iteration not in missed:
                cuts.setdefault(iteration, layout)
            if iteration == death.iteration:
                break
            iteration += 1
        if death.in_copy:
            missed.add(iteration)
        elif iteration and iteration % job.copy_every == 0 and iteration not in missed:
            cuts.setdefault(iteration, layout)
        gone |= set(death.ranks)
        for rank in death.layout.members:
            needs = atoms_of(death.layout, rank, job.config.model)
            if death.back_to is None:
                had = set(atoms_of(layout, rank, job.config.model))
            elif death.back_to == 0:
                had = set(needs)
            else:
                old = cuts[death.back_to]
                had = kept(job.config.model, old, set(old.members) - gone).get(rank, set())
            lacked[rank].append(num_states * num_bytes * sum(size for atom, size in needs.items() if atom not in had))
        layout = death.layout
        if death.back_to is not None:
            iteration, missed = death.back_to, set()
            cuts = {at: old for at, old in cuts.items() if at <= iteration}
    for rank, result in results[name].items():
        assert result.received_bytes == lacked[rank][: len(result.received_bytes)]


@every_job
def test_calls_are_numbered_alike_although_ranks_broke_off_at_different_points(name, results):
    """Else waiting could not be told from transfer any more."""
    seen: dict[tuple[int, int], set[int]] = defaultdict(set)
    totals: dict[int, int] = {}
    for rank, result in living(BY_NAME[name], results[name]).items():
        for event in result.events[(result.events["op"] == Op.ALL_REDUCE) & (result.events["group"] == 0)]:
            seen[int(event["seq"]), int(event["group"])].add(int(event["num_bytes"]))
            totals[rank] = int(event["seq"])
    assert all(len(sizes) == 1 for sizes in seen.values())
    assert len(set(totals.values())) <= 1


def test_copies_cost_each_rank_its_wards_state_and_in_memory_that_and_its_own_twice(results):
    job = BY_NAME["nobody-dies"]
    wards = {holder: rank for rank, holder in choose_holders(job.layout, dict.fromkeys(job.layout.members, "here")).items()}
    for rank, result in results[job.name].items():
        own, kept_for = (3 * 8 * sum(atoms_of(job.layout, other, job.config.model).values()) for other in (rank, wards[rank]))
        assert result.copied_bytes == [kept_for] * 3
        assert result.copy_bytes == 2 * (own + kept_for)
