"""Data of variable length, every rank's work known: no alarm on a healthy job, and a slowdown on top found, by rank or from the job's time alone."""

from __future__ import annotations

import numpy as np

from fleet_jobs import OTHER_WORK_S, Floats, generator
from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.values import VerdictEvent
from lurcher.ingest.log import Log
from lurcher.records import ITERATION

ROWS = 500
SLOWDOWN = 1.10
TOKENS = 8192
CASES = ((8, 0.15), (8, 0.25), (64, 0.15), (64, 0.25))
"""Ranks, and coefficient of variation of a rank's tokens."""


def length_rows(seed: int, num_jobs: int) -> list[dict[str, float | int | str]]:
    """A row for each number of ranks, variation, and what is known beside the work: every rank's busy time, or the job's time only."""
    rows: list[dict[str, float | int | str]] = []
    for number, (num_ranks, cov) in enumerate(CASES):
        for known in ("rank", "job"):
            false, more, late, spread = 0, 0, [], []
            for job in range(num_jobs):
                rng = generator(seed, 970, number, job)
                columns = with_work(rng, ROWS, num_ranks, cov)
                spread.append(float(np.std(columns["busy_s"]) / np.mean(columns["busy_s"])))
                false += len(analyze_log(_log(columns, known)).events)
                onset, rank = int(rng.integers(60, ROWS - 60)), int(rng.integers(num_ranks))
                # The whole job is slow where only its time is known: one of many ranks is seldom the one that is waited for.
                columns["busy_s"][onset:, rank if known == "rank" else slice(None)] *= SLOWDOWN
                after = [e for e in analyze_log(_log(columns, known)).events if onset - 5 <= e.onset_iteration]
                late += [e.detected_iteration - onset for e in after[:1] if _right(e, rank, known)]
                more += len(after) - 1 if after else 0
            rows.append(
                {
                    "ranks": num_ranks,
                    "tokens vary by": cov,
                    "busy time varies by": float(np.mean(spread)),
                    "known": "busy time of each rank" if known == "rank" else "time of the job",
                    "jobs": num_jobs,
                    "false events": false,
                    "found": len(late) / num_jobs,
                    "events too many": more,
                    "median delay": float(np.median(late)) if late else "",
                    "p90 delay": float(np.quantile(late, 0.9)) if late else "",
                    "worst delay": max(late) if late else "",
                }
            )
    return rows


def with_work(rng: np.random.Generator, num_rows: int, num_ranks: int, cov: float) -> dict[str, Floats]:
    """Tokens and summed squared lengths of every rank and iteration, and its busy seconds: linear in both, with 1 % of noise."""
    tokens = np.round(TOKENS * np.clip(1.0 + cov * rng.standard_normal((num_rows, num_ranks)), 0.3, 2.0))
    squares = np.round(tokens**2 * rng.uniform(0.2, 0.6, tokens.shape))
    seconds = 0.05 + 0.6 * tokens / TOKENS + 0.35 * squares / (0.4 * TOKENS**2)
    return {"num_tokens": tokens, "sum_len_sq": squares, "busy_s": seconds * (1.0 + 0.01 * rng.standard_normal(tokens.shape))}


def _right(event: VerdictEvent, rank: int, known: str) -> bool:
    if known == "job":
        return event.kind in ("fail_slow", "level_shift")
    return event.kind == "fail_slow" and [s.component.ranks for s in event.suspects] == [(rank,)]


def _log(columns: dict[str, Floats], known: str) -> Log:
    num_rows, num_ranks = columns["busy_s"].shape
    rows = np.zeros(num_rows * num_ranks, ITERATION)
    for name in ITERATION.names or ():
        if ITERATION[name].kind == "f":
            rows[name] = np.nan
    rows["index"] = np.repeat(np.arange(num_rows), num_ranks)
    rows["rank"] = np.tile(np.arange(num_ranks), num_rows)
    rows["duration_s"] = np.repeat(columns["busy_s"].max(axis=1) + OTHER_WORK_S, num_ranks)
    for name in ("num_tokens", "sum_len_sq", *(("busy_s",) if known == "rank" else ())):
        rows[name] = columns[name].ravel()
    names = frozenset({"duration_s", "rank", "num_tokens", "sum_len_sq", *(("busy_s",) if known == "rank" else ())})
    return Log(path="rows", format="csv", rows=rows, columns=names, num_ranks=num_ranks)
