"""What each rank's time should be for its work: seconds = a + b * tokens + c * sum of squared lengths, a fit for every rank, all ranks at once.

ResiHP, equation 1, with an intercept, as detect/residual.py has it for the job. The first rows of all ranks are fitted together, for a few dozen
rows of one rank say little; from there on each rank's own rows move its own fit, and only while nothing speaks against the rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.period import Floats
from lurcher.analyze.rank_levels import MAD_TO_SIGMA, medians_or_nan
from lurcher.analyze.rank_table import RankTable, row_medians

MEMORY = 2000.0
"""Rows after which what came before weighs 1/e: that of detect/residual.py."""
PRIOR = 2.0
"""Rows that the fit over all ranks counts for in each rank's own."""
REACH, REACH_SIGMAS = 0.10, 3.0
"""A row moves a fit as if it were at most so far off, or so many of its block's scatters."""
_POOLED_ROUNDS = 4
_RIDGE = 1e-6
_TERMS = 3


class Work(NamedTuple):
    """Tokens and summed squared lengths, iterations x ranks, each over its median; 0 everywhere where one is unknown."""

    tokens: Floats
    squares: Floats

    def rows(self, part: slice, place: int | slice = slice(None)) -> Floats:
        """The terms of the fit for these iterations and ranks, along a last axis: 1, tokens, squares."""
        tokens, squares = self.tokens[part, place], self.squares[part, place]
        return np.stack([np.ones_like(tokens), tokens, squares], axis=-1)


def work_of(table: RankTable) -> Work | None:
    """The work of each rank, None where the input does not know it. What one rank lacks in an iteration is taken from the others."""
    tokens, squares = (_scaled(table.column(name)) if name in table.names else None for name in ("num_tokens", "sum_len_sq"))
    if tokens is None and squares is None:
        return None
    none = np.zeros((len(table.iterations), 1))
    full = np.broadcast_to(none, (len(table.iterations), len(table.ranks)))
    return Work(full if tokens is None else tokens, full if squares is None else squares)


def _scaled(values: Floats) -> Floats | None:
    """A column over its median, gaps filled; None where nothing is known."""
    usual = row_medians(values)
    if not np.isfinite(usual).any():
        return None
    scaled: Floats = np.where(np.isfinite(values), values, usual[:, None]) / float(np.nanmedian(usual))
    return scaled


class WorkFit:
    """The fits of all ranks. Feed it blocks of iterations; what it expects of a block depends on earlier ones only, but for the first."""

    def __init__(self, values: Floats, rows: Floats) -> None:
        """Fit the first block's rows of all ranks together. values: seconds, iterations x ranks. rows: their terms."""
        self._scale = float(np.nanmedian(values))
        pooled = _pooled(values / self._scale, rows)
        num_ranks = values.shape[1]
        self._normal = np.zeros((num_ranks, _TERMS, _TERMS))
        self._right = np.zeros((num_ranks, _TERMS))
        self._prior = np.tile(pooled, (num_ranks, 1))
        self.terms: Floats = self._prior.copy()
        """ranks x 3: the fit, in units of the first block's median."""

    def expected_s(self, rows: Floats) -> Floats:
        """Seconds that each rank's work should take; NaN where that is not above 0."""
        return expected_s(rows, self.terms * self._scale)

    @property
    def terms_s(self) -> Floats:
        """The fit in seconds: what `expected_s` of this module takes."""
        return self.terms * self._scale

    def settle(self, levels: Floats) -> None:
        """After the first block: ranks differ for good by these factors, which become part of what is expected."""
        self._prior *= np.where(np.isfinite(levels), levels, 1.0)[:, None]
        self.terms = self._prior.copy()

    def learn(self, values: Floats, rows: Floats, calm: NDArray[np.bool_]) -> None:
        """Learn from a block, from the `calm` ranks only. values: seconds, with what all ranks have in common taken out."""
        expected = np.einsum("tni,ni->tn", rows, self.terms)
        with np.errstate(all="ignore"):
            ratio = values / (self._scale * expected)
            good = np.isfinite(ratio) & (expected > 0.0) & calm
            weight = np.where(good, 1.0 / expected, 0.0)
        reach = np.maximum(REACH, REACH_SIGMAS * MAD_TO_SIGMA * np.nan_to_num(medians_or_nan(np.abs(ratio - 1.0))))
        target = np.where(good, np.clip(ratio, 1.0 - reach, 1.0 + reach), 0.0)
        keep = np.where(calm, np.exp(-len(values) / MEMORY), 1.0)
        relative = rows * weight[:, :, None]
        for i in range(_TERMS):
            self._right[:, i] = keep * self._right[:, i] + (relative[:, :, i] * target).sum(axis=0)
            for j in range(i, _TERMS):
                self._normal[:, i, j] = keep * self._normal[:, i, j] + (relative[:, :, i] * relative[:, :, j]).sum(axis=0)
                self._normal[:, j, i] = self._normal[:, i, j]
        whole = self._normal + PRIOR * np.eye(_TERMS)
        self.terms[...] = np.linalg.solve(whole, (self._right + PRIOR * self._prior)[:, :, None])[:, :, 0]


def expected_s(rows: Floats, terms_s: Floats) -> Floats:
    """Seconds that work should take. rows: ... x ranks x 3; terms_s: ranks x 3. NaN where that is not above 0."""
    expected = np.einsum("...ni,ni->...n", rows, terms_s)
    return np.where(expected > 0.0, expected, np.nan)


def _pooled(values: Floats, rows: Floats) -> Floats:
    """One robust fit for all rows: errors relative, each clipped, a few rounds. What the rows do not tell apart goes to the tokens."""
    known = np.isfinite(values) & np.isfinite(rows).all(axis=-1)
    x, y = rows[known], values[known]
    # A first iteration takes 10 to 100 times as long: it counts as twice the median at most.
    y = np.minimum(y, 2.0 * float(np.median(y)))
    tokens_known = bool(x[:, 1].any())
    terms = np.array([0.0, float(np.median(y)) * tokens_known, float(np.median(y)) * (not tokens_known)])
    for _ in range(_POOLED_ROUNDS):
        expected = np.maximum(x @ terms, 0.1 * float(np.median(y)))
        error = y / expected - 1.0
        reach = REACH_SIGMAS * MAD_TO_SIGMA * float(np.median(np.abs(error - np.median(error)))) + _RIDGE
        weighted = x / expected[:, None]
        change = np.clip(error, -reach, reach) + (1.0 - weighted @ terms)
        terms = terms + np.linalg.solve(weighted.T @ weighted + _RIDGE * len(y) * np.eye(_TERMS), weighted.T @ change)
    return terms
