"""How often the suspects of a live job are right, by their confidence: `localize.cohort.suspects` on simulated ratios with known truth."""

from __future__ import annotations

import numpy as np

from fleet_jobs import generator
from lurcher.layout import Layout
from lurcher.localize.cohort import suspects

RECENT = 5
"""Iterations in a rank's recent median, as the coordinator takes them."""
BINS = ((0.0, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))


def live_row(seed: int, num_jobs: int) -> list[dict[str, float | int | str]]:
    """One row for each band of confidence."""
    judged: list[tuple[float, bool]] = []
    for number in range(num_jobs):
        judged += _job(generator(seed, 950, number))
    rows: list[dict[str, float | int | str]] = []
    for low, high in BINS:
        inside = [ok for confidence, ok in judged if low <= confidence < high]
        rows.append({"confidence": f"{low:.1f} to {min(high, 1.0):.1f}", "suspects": len(inside), "right": float(np.mean(inside)) if inside else ""})
    return rows


def _job(rng: np.random.Generator) -> list[tuple[float, bool]]:
    """The suspects of one moment of one job, each with whether it is the true rank."""
    layout = Layout.uniform(
        tp=int(rng.choice([1, 2, 4])), pp=int(rng.choice([1, 2, 4])), dp=int(rng.choice([1, 2, 4, 8])), num_layers=8, num_microbatches=64
    )
    ranks = layout.ranks
    if len(ranks) < 2:
        return []
    sigma = float(np.exp(rng.uniform(np.log(0.004), np.log(0.05))))
    factors = np.ones(len(ranks))
    true = set()
    for _ in range(int(rng.choice([0, 1, 1, 2]))):
        place = int(rng.integers(len(ranks)))
        excess = float(np.exp(rng.uniform(np.log(0.05), 0.0)))
        factors[place] *= 1.0 + excess
        true.add(ranks[place])
        for mate in _mates(layout, ranks[place]):
            factors[ranks.index(mate)] *= 1.0 + float(rng.uniform(0.0, 0.5)) * excess
    shared = float(rng.choice([1.0, 1.0, 1.3]))
    window = shared * factors * (1.0 + sigma * rng.standard_normal((RECENT, len(ranks))))
    pause = rng.random(window.shape) < float(rng.choice([0.0, 0.02]))
    window[pause] *= 1.0 + rng.random(int(pause.sum()))
    ratios = np.median(window, axis=0)
    stage = np.array([1.0 + 0.3 * layout.position(r).pp for r in ranks])
    differs = 1.0 + float(rng.choice([0.0, 0.05])) * rng.standard_normal(len(ranks))
    busy = ratios * stage * differs
    waits = 1.0 - busy / (busy.max() * (1.0 + 0.1 * rng.random()))
    found, _ = suspects(
        dict(zip(ranks, ratios.tolist(), strict=True)),
        dict(zip(ranks, busy.tolist(), strict=True)),
        layout,
        sigma * float(rng.uniform(0.8, 1.25)),
        1.10,
        wait_share=dict(zip(ranks, waits.tolist(), strict=True)),
    )
    return [(suspicion.confidence, set(suspicion.component.ranks) <= true) for suspicion in found]


def _mates(layout: Layout, rank: int) -> tuple[int, ...]:
    return next(tuple(m for m in stage.ranks if m != rank) for _, _, stage in layout.stages() if rank in stage.ranks)
