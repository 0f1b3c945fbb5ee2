"""`lurcher.Detector`: the default detector with its residual, for a training loop that calls it once an iteration."""

from __future__ import annotations

from math import isfinite

import msgspec

from lurcher.detect.default import DefaultDetector
from lurcher.detect.residual import WorkloadResidual
from lurcher.errors import UserError
from lurcher.records import ChangePoint


class Detector:
    """Watches one job's iteration time, online: constant time and memory an iteration, never looks ahead, pickles.

    `num_iterations`: calls so far, which also number the iterations from 0. `num_ignored`: those that carried no iteration time.
    """

    def __init__(self) -> None:
        self.num_iterations = 0
        self._num_unusable = 0
        self._knows_work: bool | None = None
        self._fit = WorkloadResidual()
        self._detector = DefaultDetector()

    @property
    def reason(self) -> str:
        """One sentence: why the detector is in its present state."""
        return self._detector.reason

    @property
    def num_ignored(self) -> int:
        """Calls whose duration (or work) was no positive number, or a thousand times the level: counted, and changed nothing."""
        return self._num_unusable + self._detector.num_ignored

    def update(self, duration_s: float, num_tokens: float | None = None, sum_len_sq: float | None = None) -> ChangePoint | None:
        """Take the next iteration; return the change it shows, at most one.

        duration_s: its seconds. num_tokens, sum_len_sq: its work (tokens, and the sum of squared document lengths), at every
        call or at none: then the level is what this much work should take, learned meanwhile, and the first 12 iterations only teach.
        A change of tier "suspect" is worth a look, of tier "confirmed" an act; its levels are seconds, for the work of this iteration.

        Raises UserError where work is given at one call and not at another.
        """
        iteration = self.num_iterations
        self.num_iterations += 1
        knows_work = num_tokens is not None or sum_len_sq is not None
        if self._knows_work not in (None, knows_work):
            given, before = ("given", "not before") if knows_work else ("missing", "given before")
            raise UserError(f"work is {given} at iteration {iteration} and was {before}; give num_tokens or sum_len_sq at every call or at none")
        self._knows_work = knows_work
        tokens, squares = 1.0 if num_tokens is None else float(num_tokens), 1.0 if sum_len_sq is None else float(sum_len_sq)
        if not all(isfinite(value) and value > 0.0 for value in (duration_s, tokens, squares)):
            self._num_unusable += 1
            return None
        if not knows_work:
            return self._detector.update(float(duration_s), iteration)
        frozen = self._detector.state not in ("learning", "healthy")
        residual = self._fit.update(float(duration_s), tokens, squares, frozen=frozen)
        change = self._detector.update(residual, iteration) if isfinite(residual) else None
        if change is None:
            return None
        expected_s = duration_s / residual
        return msgspec.structs.replace(change, before_s=change.before_s * expected_s, after_s=change.after_s * expected_s)
