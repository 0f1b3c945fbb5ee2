"""Linear fits that learn online and are not led astray: one per slot, exponentially forgotten, each row held to the fit so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lurcher.records import Op

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
PHASES = (Op.FORWARD, Op.BACKWARD, Op.WEIGHT)
"""A rank has one slot per phase: slot = rank * 3 + (0 forward, 1 backward, 2 weight gradient)."""
FORGETTING = 0.999
"""Weight of a row against the next one of the same rank and phase: a memory of about 1,000 chunks."""
MIN_ROWS = 12
"""Rows of a rank and phase before its own fit may clip outliers."""
CLIP_SCALES = 4.0
"""A row moves the fit as if it were at most so many mean absolute residuals off."""


class RobustFits:
    """One linear fit per slot (rank and phase): normal equations, exponentially forgotten, rows clipped against the fit so far."""

    def __init__(self, ridge: Sequence[float]) -> None:
        self._ridge = np.diag(np.asarray(ridge, dtype=np.float64))
        size = len(ridge)
        self._normal = np.zeros((0, size, size))
        self._moment = np.zeros((0, size))
        self._scale = np.zeros(0)
        self._inverse = np.zeros((0, size, size))
        self.num_rows = np.zeros(0)
        self.coefficients = np.zeros((0, size))

    def grow(self, num_slots: int) -> None:
        """Make room for slots 0 .. num_slots - 1, and for all phases of the last rank."""
        more = -(-num_slots // len(PHASES)) * len(PHASES) - len(self.num_rows)
        if more > 0:
            for name in ("_normal", "_moment", "_scale", "_inverse", "num_rows", "coefficients"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]))]))

    def update(self, slots: Ints, features: Floats, values: Floats) -> None:
        """Learn rows: `features` (rows, size), `values` (rows,) in seconds."""
        self.grow(int(slots.max()) + 1)
        num_slots = len(self.num_rows)
        clipped, residuals = self._clip(slots, features, values)
        new_rows = np.bincount(slots, minlength=num_slots).astype(np.float64)
        seen = np.flatnonzero(new_rows)
        decay = FORGETTING**new_rows
        size = features.shape[1]
        self.num_rows = self.num_rows * decay + new_rows
        for i in range(size):
            self._moment[:, i] = self._moment[:, i] * decay + np.bincount(slots, features[:, i] * clipped, num_slots)
            for j in range(size):
                self._normal[:, i, j] = self._normal[:, i, j] * decay + np.bincount(slots, features[:, i] * features[:, j], num_slots)
        matrix = self._normal[seen] + self._ridge * self.num_rows[seen, None, None]
        self._inverse[seen] = np.linalg.inv(matrix)
        self.coefficients[seen] = np.linalg.solve(matrix, self._moment[seen, :, None])[:, :, 0]
        first = self._scale == 0
        if first[slots].any():  # no fit to compare with before: take the scatter around the one just made
            after = np.abs(clipped - (features * self.coefficients[slots]).sum(axis=1))
            residuals = np.where(first[slots], after, residuals)
        mean = np.bincount(slots, residuals, num_slots)[seen] / new_rows[seen]
        self._scale[seen] = np.where(first[seen], mean, 0.9 * self._scale[seen] + 0.1 * mean)

    def _clip(self, slots: Ints, features: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Values pulled to within reach of the fit (of the rows' own median before there is one), and how far off they then are."""
        predicted = (features * self.coefficients[slots]).sum(axis=1)
        # A row unlike all before it says something new: the fit is held to it only as far as it knows (its leverage).
        leverage = np.einsum("ri,rij,rj->r", features, self._inverse[slots], features)
        reach = np.maximum(CLIP_SCALES * self._scale[slots] * np.sqrt(1.0 + np.maximum(leverage, 0.0)), 0.02 * np.abs(predicted)) + 1e-6
        fitted = self.num_rows[slots] >= MIN_ROWS
        middle = _slot_medians(slots, values, len(self.num_rows))[slots]
        low, high = np.where(fitted, predicted - reach, 0.0), np.where(fitted, predicted + reach, 3.0 * middle + 1e-6)
        clipped = np.clip(values, low, high)
        return clipped, np.abs(clipped - predicted)

    def predict(self, slots: Ints, features: Floats) -> Floats:
        """Fitted values, >= 0; `features` is (slots, ..., size). A slot that never saw a row gets the median of the others of its phase."""
        self.grow(int(slots.max()) + 1)
        chosen = self.coefficients[slots]
        strangers = self.num_rows[slots] == 0
        for phase in range(len(PHASES)) if strangers.any() else ():
            known = self.num_rows[phase :: len(PHASES)] > 0
            if known.any():
                chosen[strangers & (slots % len(PHASES) == phase)] = np.median(self.coefficients[phase :: len(PHASES)][known], axis=0)
        chosen = chosen.reshape(len(slots), *(1,) * (features.ndim - 2), features.shape[-1])
        fitted: Floats = np.maximum((features * chosen).sum(axis=-1), 0.0)
        return fitted


def _slot_medians(slots: Ints, values: Floats, num_slots: int) -> Floats:
    """Upper median of each slot's values; 0 for a slot without any."""
    order = np.lexsort((values, slots))
    counts = np.bincount(slots, minlength=num_slots)
    medians = np.zeros(num_slots)
    seen = np.flatnonzero(counts)
    medians[seen] = values[order][(np.cumsum(counts) - counts + counts // 2)[seen]]
    return medians
