"""Which workers of a trace are slow: those whose computation stands out from the same stage of the other replicas.

Stages are never compared for blame, for they differ by design. Two views are taken: the durations as they are, and what is left of them
when the same micro-batches' durations on other stages are taken off; the second sees through sequence lengths, the first sees
a replica all of whose stages are slow.
"""

from __future__ import annotations

import msgspec
import numpy as np

from lurcher.localize.whatif_chunks import Chunks, unexplained
from lurcher.localize.whatif_middle import median
from lurcher.localize.whatif_times import Floats

LEAST_SLOWDOWN = 1.10
"""GREYHOUND calls a component slow from 10 % above the median of its like on (USENIX ATC'25, section 4)."""
LEAST_SCORE = 2.5
"""Standard errors above the others, beyond what the largest of so many periods shows by chance, where the lengths of the micro-batches are taken off."""
LEAST_PLAIN_SCORE = 4.5
"""And where they are not: their lengths alone lift a healthy worker of trace SE by 5.8 in all, 1.1 beyond chance."""
LEAST_STEPS = 3
"""A slow period covers so many steps, where the trace has as many."""
LEAST_SCATTER = 1e-4
"""Scatter of a worker's micro-batches that stamps alone would cause."""
MOST_PIECES = 64
"""Longer traces are searched for the slow period in so many pieces."""


class SlowWorker(msgspec.Struct, frozen=True):
    """A worker that computes slower than its like in steps `first` to `end - 1` (places, not numbers).

    `slowdown` is its time over theirs for the same work, `score` its distance in standard errors; up to step `confirmed` they sufficed to
    name it. `worst_other` is the largest slowdown among its `num_like` like in the same steps.
    """

    dp: int
    stage: int
    first: int
    end: int
    confirmed: int
    slowdown: float
    score: float
    worst_other: float
    num_like: int


class _Period(msgspec.Struct, frozen=True):
    first: int
    end: int
    excess: float  # mean logarithm of the ratio
    score: float


def slow_workers(found: Chunks) -> tuple[SlowWorker, ...]:
    """Slow workers by descending slowdown. With one replica there is nothing to compare with, and none is named."""
    logs = np.log(np.maximum(found.both_s, 1e-12))
    if logs.shape[2] < 2:
        return ()
    slow: list[SlowWorker] = []
    for stage in range(len(logs)):
        plain = _view([logs[stage]])
        left = unexplained(logs, stage)
        seen = _named(_view(left), plain, stage, LEAST_SCORE) if left else []
        named = {worker.dp for worker in seen}
        slow += seen + [worker for worker in _named(plain, plain, stage, LEAST_PLAIN_SCORE) if worker.dp not in named]
    return tuple(sorted(slow, key=lambda worker: -worker.slowdown))


class _View(msgspec.Struct, frozen=True, eq=False):
    """Logarithms of each worker's time over that of its like, (D, T), and the standard error of one step."""

    ratios: Floats
    error: float


def _view(logs: list[Floats]) -> _View:
    """`logs` are logarithms (M, D, T) of one stage's durations, each as another stage explains them; their median view counts."""
    ratios = median(np.array([beside_others(one.mean(axis=0)) for one in logs]), axis=0)
    # Replicas compute their m-th micro-batches at about the same time, so that what slows all of them down is no scatter.
    differences = [one - median(one, axis=1)[:, None] if one.shape[1] > 2 else one - one[:, ::-1] for one in logs]
    scatter = float(median(np.array([median(one.std(axis=(0, 2))) for one in differences])))
    return _View(ratios, max(scatter, LEAST_SCATTER) / np.sqrt(len(logs[0])))


def _named(view: _View, plain: _View, stage: int, least_score: float) -> list[SlowWorker]:
    """The workers that are slow in `view`, and slow in plain time too: where another stage is slow, its mates look fast, and others slow."""
    slow = []
    least_score += chance(view.ratios.shape)
    for dp, mine in enumerate(view.ratios):
        found = slow_period(mine, view.error)
        steps = slice(found.first, found.end)
        if found.score < least_score or found.excess < np.log(LEAST_SLOWDOWN):
            continue
        if np.count_nonzero(mine[steps] >= 0.5 * found.excess) < _least_steps(len(mine)):
            continue  # one or two very slow steps, and a healthy one for company
        if plain.ratios[dp, steps].mean() < 0.5 * found.excess - 2 * plain.error / np.sqrt(found.end - found.first):
            continue
        others = np.delete(view.ratios[:, steps].mean(axis=1), dp)
        slow.append(
            SlowWorker(
                dp=dp,
                stage=stage,
                first=found.first,
                end=found.end,
                confirmed=_confirmed(mine[steps], view.error, least_score) + found.first,
                slowdown=float(np.exp(found.excess)),
                score=found.score,
                worst_other=float(np.exp(others.max())),
                num_like=len(others),
            )
        )
    return slow


def beside_others(values: Floats) -> Floats:
    """Each row less the median of all other rows, column by column; (D, T) -> (D, T), D of 2 or more."""
    num, order = len(values), np.sort(values, axis=0)
    rank = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    low, high = (num - 2) // 2, (num - 1) // 2  # places of the middle among the others
    return np.asarray(values - 0.5 * (_without(order, rank, low) + _without(order, rank, high)))


def _without(order: Floats, rank: np.ndarray, place: int) -> Floats:
    """The `place`-th smallest of the others: the next one where the row itself comes before it."""
    return np.asarray(np.where(rank <= place, order[place + 1], order[place]))


def _confirmed(ratios: Floats, error: float, least_score: float) -> int:
    """The place of the first step by whose end a slow period had shown itself."""
    lengths = np.arange(1, len(ratios) + 1)
    means = np.cumsum(ratios) / lengths
    enough = (means * np.sqrt(lengths) / error >= least_score) & (means >= np.log(LEAST_SLOWDOWN)) & (lengths >= _least_steps(len(ratios)))
    return int(np.argmax(enough)) if enough.any() else len(ratios) - 1


def _least_steps(num: int) -> int:
    """How many steps a slow period has at least in a trace of `num`: one will do where there are hardly any."""
    return LEAST_STEPS if num >= LEAST_STEPS else 1


def chance(shape: tuple[int, ...]) -> float:
    """Standard errors that the largest of all periods of all workers (D, T) reaches by chance, about."""
    num_dp, num_steps = shape[0], min(shape[1], MOST_PIECES)
    return float(np.sqrt(2 * np.log(num_dp * num_steps * (num_steps + 1) / 2)))


def slow_period(ratios: Floats, error: float) -> _Period:
    """The stretch of steps in which the logarithms of a worker's ratios (T,) lie highest, in standard errors; `error` is that of one step."""
    num = len(ratios)
    edges = np.linspace(0, num, min(num, MOST_PIECES) + 1).astype(int)
    sums = np.concatenate([[0.0], np.cumsum(ratios)])[edges]
    lengths = edges[None, :] - edges[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (sums[None, :] - sums[:, None]) / lengths
        scores = np.where(lengths >= _least_steps(num), means * np.sqrt(lengths) / error, 0.0)
    first, end = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return _Period(int(edges[first]), int(edges[end]), float(means[first, end]) if scores[first, end] > 0 else 0.0, float(scores[first, end]))
