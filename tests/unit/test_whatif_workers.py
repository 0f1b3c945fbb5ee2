"""Who is called slow: the injected, in the steps of the injection; nobody where lengths, stages or noise are the reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lurcher.localize.whatif_chunks import Chunks, unexplained
from lurcher.localize.whatif_workers import beside_others, slow_period, slow_workers

Floats = NDArray[np.float64]


def job(
    *, stages: int = 4, replicas: int = 4, microbatches: int = 8, steps: int = 12, lengths: float = 0.0, noise: float = 0.02, seed: int = 0
) -> Floats:
    """Seconds of micro-batches, (P, M, D, T): the last stage longer, the same micro-batch alike on all stages."""
    rng = np.random.default_rng(seed)
    work = np.exp(rng.normal(0, lengths, (microbatches, replicas, steps)))
    stage = np.append(np.ones(stages - 1), 1.6)[:, None, None, None]
    return np.asarray(0.1 * stage * work * np.exp(rng.normal(0, noise, (stages, microbatches, replicas, steps))))


def found(seconds: Floats) -> dict[tuple[int, int], float]:
    return {(worker.dp, worker.stage): worker.slowdown for worker in slow_workers(Chunks(seconds, 2 * seconds))}


@pytest.mark.parametrize("lengths", [0.0, 0.4])
@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_nobody_is_slow_by_chance_and_the_injected_is_found(lengths: float, replicas: int) -> None:
    for seed in range(12):
        seconds = job(replicas=replicas, lengths=lengths, seed=seed)
        assert found(seconds) == {}
        dp, stage = seed % replicas, seed % 4
        seconds[stage, :, dp] *= 1.3
        (named,) = found(seconds).items()
        assert named[0] == (dp, stage) and named[1] == pytest.approx(1.3, rel=0.05)


def test_noise_alone_accuses_nobody() -> None:
    """Scatter of a half, not shared between stages, over few and many steps."""
    for seed in range(40):
        seconds = job(replicas=4, microbatches=4, steps=1 + seed % 9, noise=0.5, seed=seed)
        assert found(seconds) == {}, seed


def test_two_at_once() -> None:
    for one, other in [((0, 0), (1, 1)), ((0, 0), (0, 2)), ((2, 3), (3, 3)), ((1, 1), (1, 3))]:
        seconds = job(replicas=5, lengths=0.3)
        for dp, stage in (one, other):
            seconds[stage, :, dp] *= 1.5
        assert set(found(seconds)) == {one, other}


def test_a_whole_replica_is_found_though_its_stages_agree() -> None:
    seconds = job(replicas=6, lengths=0.1)
    seconds[:, :, 2] *= 1.5
    assert set(found(seconds)) == {(2, stage) for stage in range(4)}


def test_of_two_replicas_a_fast_mate_accuses_nobody() -> None:
    """Two slow stages of one replica make the other replica's healthy ones look slow in comparison."""
    seconds = job(replicas=2)
    seconds[0, :, 0] *= 1.5
    seconds[1, :, 0] *= 1.5
    assert set(found(seconds)) == {(0, 0), (0, 1)}


def test_one_replica_names_nobody() -> None:
    seconds = job(replicas=1)
    seconds[1] *= 2.0
    assert found(seconds) == {}


def test_the_period_is_the_injections() -> None:
    seconds = job(steps=30)
    seconds[1, :, 2, 8:20] *= 1.4
    (worker,) = slow_workers(Chunks(seconds, 2 * seconds))
    assert (worker.dp, worker.stage, worker.first, worker.end) == (2, 1, 8, 20)
    assert worker.confirmed == 10 and worker.slowdown == pytest.approx(1.4, rel=0.03) and worker.num_like == 3
    cut = slow_workers(Chunks(seconds[..., :11], 2 * seconds[..., :11]))
    assert [(w.dp, w.stage, w.confirmed) for w in cut] == [(2, 1, 10)]
    assert slow_workers(Chunks(seconds[..., :10], 2 * seconds[..., :10])) == ()


@given(st.integers(2, 9), st.integers(0, 1000))
def test_beside_others_is_the_median_of_all_but_oneself(num: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 6, (num, 3)).astype(float)
    expected = [[values[i, t] - np.median(np.delete(values[:, t], i)) for t in range(3)] for i in range(num)]
    assert beside_others(values) == pytest.approx(np.array(expected))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_slow_period_is_the_best_of_all(values: list[float]) -> None:
    ratios = np.array(values)
    least = 3 if len(values) >= 3 else 1
    every = [ratios[a:b].sum() / np.sqrt(b - a) / 0.1 for a in range(len(values)) for b in range(a + least, len(values) + 1)]
    assert slow_period(ratios, 0.1).score == pytest.approx(max(0.0, *every), abs=1e-9)


def test_lengths_are_explained_by_the_other_stages() -> None:
    logs = np.log(job(lengths=0.4, noise=0.01))
    left = unexplained(logs, 0)
    assert len(left) == 3 and all(one.std(axis=(0, 2)).max() < 0.1 * logs[0].std() for one in left)
    assert unexplained(np.log(job(lengths=0.0)), 0) == []
