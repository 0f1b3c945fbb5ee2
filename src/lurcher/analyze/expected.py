"""What each iteration of a log should have taken, by the best that is known: the input's own expectation, its workload, sibling runs, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.period import Floats, Ints, median_or
from lurcher.analyze.rank_table import blocks, rank_table, row_medians
from lurcher.analyze.series import Known
from lurcher.detect.default import DefaultDetector
from lurcher.detect.residual import WorkloadResidual
from lurcher.errors import UserError
from lurcher.ingest.log import Log

ALTERNATES = 2.0
"""Times the difference between steps two apart that neighbours differ by, where even and odd steps are of two kinds."""
MIN_STEPS = 20
WORK = ("num_tokens", "sum_len_sq")
"""Columns that say how much work an iteration is."""


class JobSeries(NamedTuple):
    """A log's job, one value an iteration. Times are the median over ranks, for all wait for each other; work is that of the rank with the most, for
    which they wait."""

    iterations: Ints
    durations_s: Floats
    num_tokens: Floats
    sum_len_sq: Floats
    expected_s: Floats


class Residuals(NamedTuple):
    """Observed over expected; where nothing is expected the durations themselves. `reason` says what was used."""

    values: Floats
    known: Known
    reason: str


def job_series(log: Log) -> JobSeries:
    """Collapse the ranks of a log. Iterations in the input's numbers, rising."""
    table = rank_table(log)
    unknown = np.full(len(table.iterations), np.nan)
    times = [row_medians(table.column(name)) if name in log.columns else unknown for name in ("duration_s", "expected_s")]
    work = {name: table.column(name) for name in WORK if name in log.columns}
    if len(table.ranks) > 1 and work:
        place = _busiest(list(work.values()))[:, None]
        work = {name: np.take_along_axis(values, place, axis=1) for name, values in work.items()}
    tokens, squares = (work[name][:, 0] if name in work else unknown for name in WORK)
    return JobSeries(table.iterations, times[0], tokens, squares, times[1])


def _busiest(work: Sequence[Floats]) -> NDArray[np.intp]:
    """The place of the rank with the most work in each iteration; each kind of work in units of its median, for what each costs is not known."""
    usual = [median_or(row_medians(values), 1.0) for values in work]
    found = np.zeros(len(work[0]), np.intp)
    for part in blocks(*work[0].shape):
        total = sum(np.nan_to_num(values[part]) / one for values, one in zip(work, usual, strict=True))
        found[part] = np.argmax(total, axis=1)
    return found


def residuals(log: Log, job: JobSeries, baselines: Sequence[Log]) -> Residuals:
    """The residual series, causal: no value depends on a later one. Raises UserError where a baseline shares no iteration with the log."""
    if baselines:
        return _against_siblings(log, job, baselines)
    if "expected_s" in log.columns and np.isfinite(job.expected_s).sum() > len(job.iterations) // 2:
        return Residuals(job.durations_s / job.expected_s, "workload", "expected times come with the input")
    if "num_tokens" in log.columns or "sum_len_sq" in log.columns:
        return Residuals(_against_work(job), "workload", "expected times were fitted to tokens and sequence lengths")
    return Residuals(job.durations_s, "nothing", "nothing but durations is known")


def _against_work(job: JobSeries) -> Floats:
    """Fit and test side by side, for the fit must not learn what the detector suspects."""
    fit, detector = WorkloadResidual(), DefaultDetector()
    tokens = np.where(np.isfinite(job.num_tokens), job.num_tokens, 1.0)
    squares = np.where(np.isfinite(job.sum_len_sq), job.sum_len_sq, 1.0)
    values = np.full(len(job.iterations), np.nan)
    for i, iteration in enumerate(job.iterations):
        frozen = detector.state not in ("learning", "healthy")
        values[i] = fit.update(float(job.durations_s[i]), float(tokens[i]), float(squares[i]), frozen=frozen)
        detector.update(float(values[i]), int(iteration))
    return values


def _against_siblings(log: Log, job: JobSeries, baselines: Sequence[Log]) -> Residuals:
    """Per-step healthy level of sibling runs: the median over the siblings that have the step, or one within a few steps of it."""
    levels = []
    for baseline in baselines:
        sibling = job_series(baseline)
        shared = np.interp(job.iterations, sibling.iterations, _filled(sibling.durations_s), left=np.nan, right=np.nan)
        if not np.isfinite(shared).any():
            first, last = int(sibling.iterations[0]), int(sibling.iterations[-1])
            raise UserError(
                f"--baseline {baseline.path} covers iterations {first} to {last}, none of {log.path}; give a run of the same code and schedule"
            )
        levels.append(shared)
    with np.errstate(all="ignore"):
        level = np.nanmedian(np.array(levels), axis=0)
    said = f"each iteration was held against {len(baselines)} sibling run{'s' if len(baselines) > 1 else ''}"
    if _alternates(level):
        return Residuals(_pairs(job.durations_s) / _pairs(level), "baseline", said + ", two at a time, for even and odd ones differ")
    return Residuals(job.durations_s / level, "baseline", said)


def _alternates(level: Floats) -> bool:
    """Whether even and odd steps differ: a step is more like the one before the last than like the last."""
    with np.errstate(all="ignore"):
        steps = [float(np.nanmedian(np.abs(level[lag:] - level[:-lag]))) for lag in (1, 2)] if len(level) > MIN_STEPS else [0.0, 0.0]
    return steps[0] > ALTERNATES * steps[1]


def _pairs(values: Floats) -> Floats:
    """The mean of each sample and the one before it."""
    before = np.concatenate([values[:1], values[:-1]])
    middle: Floats = (values + before) / 2.0
    return middle


def _filled(values: Floats) -> Floats:
    good = np.flatnonzero(np.isfinite(values))
    return np.interp(np.arange(len(values)), good, values[good]) if len(good) else values
