"""Which ranks became slow, and when that was certain: one sequential test over all ranks at once, whose threshold grows with their number.

Page's CUSUM for each rank: the log-likelihood ratio of a rise by SIZE over none, summed up from where it pays (Page 1954; of all tests for a
known rise it is the quickest, Moustakides 1986). The level, scatter and correlation that a sample is held against were learned before its block
of iterations began, so nothing that is said depends on later samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.period import Floats
from lurcher.analyze.rank_levels import Levels, medians_or_nan
from lurcher.analyze.rank_table import CELLS, Middles, blocks, middles, row_medians
from lurcher.analyze.rank_work import Work, WorkFit, expected_s

FIRST_SAMPLES = 24
"""Samples that the first levels are learned from; the test speaks after them."""
BLOCK, LONG_BLOCK, SETTLED_SAMPLES = 32, 128, 512
"""Samples between two looks at the levels, before and after so many samples."""
SIZE = 0.10
"""The rise that is tested for, GREYHOUND's least; what lasts is found from half of it on."""
CHANCE = 1e-8
"""Of a false alarm in one sample of the whole job, for normal noise; the threshold is the logarithm of ranks / CHANCE."""
SAMPLES = 7
"""No fewer slow samples may alarm, however slow: bursts of up to five are benign (detection.md, section 5)."""
WATCH = 0.5
"""Share of the threshold above which nothing is learned from a rank."""


class Alarm(NamedTuple):
    """A rank (its place in the table) is slow: rows of the table from which on it seems to be, when that was certain, and until when it was."""

    place: int
    onset: int
    first: int
    last: int


class _Reference(NamedTuple):
    """What a block of iterations was held against: the middles of all ranks, each rank's level, and the fit of its work if that is known."""

    part: slice
    middles: Middles
    level: Floats
    terms_s: Floats | None


@dataclass(frozen=True, eq=False)
class Screening:
    """What the test saw. alarms by their first row.

    begin: the row from which on at least half of the ranks are known. start: each rank's level in the first samples from there, over the median
    rank's and per unit of work, and start_noise its scatter; NaN where it was not seen. noise: relative scatter of each rank's ratio at the end.
    """

    values: Floats
    work: Work | None
    alarms: tuple[Alarm, ...]
    begin: int
    start: Floats
    start_noise: Floats
    noise: Floats
    references: tuple[_Reference, ...]

    def own(self, place: int) -> Floats:
        """One rank's time per unit of work: over what its work lets expect, or as it is where the work is not known."""
        found = np.full(len(self.values), np.nan)
        for reference in self.references:
            found[reference.part] = self._own(reference, place)
        return found

    def ratios(self, place: int) -> Floats:
        """One rank's time per unit of work over that of the others as they usually are; its own level is left in."""
        found = np.full(len(self.values), np.nan)
        for reference in self.references:
            own = self._own(reference, place)
            found[reference.part] = own / reference.middles.of_others(own[:, None] / reference.level[place])[:, 0]
        return found

    def _own(self, reference: _Reference, place: int) -> Floats:
        values = self.values[reference.part, place]
        if self.work is None or reference.terms_s is None:
            return values
        one = slice(place, place + 1)
        return values / expected_s(self.work.rows(reference.part, one), reference.terms_s[one])[:, 0]


def screen(values: Floats, work: Work | None = None) -> Screening:
    """Test all ranks of one column. values: seconds (or any positive unit), iterations x ranks, NaN unknown."""
    num_rows, num_ranks = values.shape
    begin = _first_known(values)
    if num_rows - begin < FIRST_SAMPLES:
        nothing = np.full(num_ranks, np.nan)
        return Screening(values, work, (), begin, nothing, nothing, nothing, ())
    first = slice(begin, begin + FIRST_SAMPLES)
    fit = None if work is None else WorkFit(values[first], work.rows(first))
    start = _start(values[first] if fit is None or work is None else values[first] / fit.expected_s(work.rows(first)))
    if fit is not None:
        fit.settle(start)
    # The first block is held against itself; the test speaks at its end.
    levels = Levels(start if fit is None else np.ones(num_ranks))
    start_noise = levels.sigma
    test = Cusum(num_ranks, begin)
    references = []
    for part in _blocks(begin, num_rows, num_ranks):
        rows = None if work is None else work.rows(part)
        own = values[part] if fit is None or rows is None else values[part] / fit.expected_s(rows)
        others = middles(own / levels.level)
        references.append(_Reference(part, others, levels.level, None if fit is None else fit.terms_s))
        usual = others.of_others(own / levels.level)
        if part == first:
            levels.begin(own, usual)
            start_noise = levels.sigma
        level = levels.level
        calm, moved = test.feed(own / (usual * level) - 1.0, levels, part.start)
        if part != first:
            levels.learn(own, usual, calm, moved)
        if fit is not None and rows is not None:
            fit.learn(values[part] / (usual * level), rows, calm)
    return Screening(values, work, test.alarms(), begin, start, start_noise, levels.sigma, tuple(references))


def _first_known(values: Floats) -> int:
    """The first row in which at least half of the ranks have a value; the number of rows where none is such."""
    for part in blocks(*values.shape):
        known = 2 * np.count_nonzero(np.isfinite(values[part]), axis=1) >= values.shape[1]
        if known.any():
            return int(part.start) + int(np.argmax(known))
    return len(values)


def _blocks(first: int, num_rows: int, num_ranks: int) -> Iterator[slice]:
    """Blocks whose borders do not depend on how long the table is."""
    long = max(BLOCK, min(LONG_BLOCK, CELLS // max(1, num_ranks)))
    begin, length = first, FIRST_SAMPLES
    while begin < num_rows:
        yield slice(begin, min(begin + length, num_rows))
        begin += length
        length = BLOCK if begin - first < SETTLED_SAMPLES else long


def _start(own: Floats) -> Floats:
    """Levels of the ranks over the median rank's in the first block; NaN where a rank was not seen."""
    return medians_or_nan(own / row_medians(own)[:, None])


class Cusum:
    """The test's state over all ranks. Feed it blocks in order; a single sample counts for at most one of SAMPLES, in either direction."""

    def __init__(self, num_ranks: int, begin: int = 0) -> None:
        """`begin`: the row that the first block begins with."""
        self.threshold = log(num_ranks / CHANCE)
        self._score = np.zeros(num_ranks)
        self._since = np.full(num_ranks, begin, np.int64)
        self._speaks = begin + FIRST_SAMPLES - 1
        self._open: dict[int, Alarm] = {}
        self._closed: list[Alarm] = []

    def feed(self, rises: Floats, levels: Levels, begin: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Take a block: each rank's rise over its level, iterations x ranks; `begin` is its first row.

        Returns which ranks may be learned from, and which were slow all through the block: for these the test begins anew, at their new level.
        """
        gain = SIZE / (levels.sigma**2 * levels.inflation)
        # A level that is itself unsure is no measure for small rises.
        slack = SIZE / 2.0 + 2.0 * levels.error
        most = self.threshold / (SAMPLES - 0.5)
        with np.errstate(invalid="ignore"):
            steps = np.clip((rises - slack) * gain, -most, most)
        steps[~np.isfinite(steps)] = 0.0
        steps[0] += self._score
        totals = np.cumsum(steps, axis=0, out=steps)
        scores = totals - np.minimum(np.minimum.accumulate(totals, axis=0), 0.0)
        self._note(scores, begin)
        zero = scores[::-1] <= 0.0
        last_zero = begin + len(scores) - np.argmax(zero, axis=0)
        self._since = np.where(zero.any(axis=0), last_zero, self._since)
        moved = (scores.min(axis=0) > self.threshold) & (len(scores) >= BLOCK)
        # A rank that was slow for long must not need as long to be seen well again.
        self._score = np.where(moved, 0.0, np.minimum(scores[-1], self.threshold + most))
        return scores.max(axis=0) < WATCH * self.threshold, moved

    def _note(self, scores: Floats, begin: int) -> None:
        above = scores > self.threshold
        high = np.flatnonzero(above.any(axis=0))
        for place in [p for p in self._open if not above[0, p]]:
            self._closed.append(self._open.pop(place))
        for place in high.tolist():
            edges = np.flatnonzero(np.diff(above[:, place].astype(np.int8), prepend=0, append=0))
            for i, (on, off) in enumerate(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)):
                last = begin + off - 1
                if i == 0 and on == 0 and place in self._open:
                    alarm = self._open.pop(place)._replace(last=last)
                else:
                    zeros = np.flatnonzero(scores[:on, place] <= 0.0)
                    onset = begin + int(zeros[-1]) + 1 if len(zeros) else int(self._since[place])
                    # What the first block is held against is known at its end only.
                    alarm = Alarm(place, onset, max(begin + on, self._speaks), max(last, self._speaks))
                if off == len(scores):
                    self._open[place] = alarm
                else:
                    self._closed.append(alarm)

    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms so far, by the row in which they were certain."""
        return tuple(sorted((*self._closed, *self._open.values()), key=lambda alarm: (alarm.first, alarm.place)))
