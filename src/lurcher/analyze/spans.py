"""Which of many periods have an iteration in common with another, without looking at all of them: a long log has thousands."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf

from lurcher.analyze.values import VerdictEvent


class Spans:
    """Events in order of their onset, which must not overlap each other. One that lasts has no end."""

    def __init__(self, events: Sequence[VerdictEvent]) -> None:
        self._begins = [event.onset_iteration for event in events]
        self._ends: list[float] = [inf if event.end_iteration is None else event.end_iteration for event in events]

    def touched_by(self, event: VerdictEvent) -> range:
        """Places of those that share an iteration with `event`."""
        end = inf if event.end_iteration is None else event.end_iteration
        return range(bisect_left(self._ends, event.onset_iteration), bisect_right(self._begins, end))
