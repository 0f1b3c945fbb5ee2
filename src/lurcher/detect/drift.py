"""Slow regression: a level that creeps up without a step is followed by the baseline, so it is held against an anchored second one.

Cheap and coarse on purpose: medians of blocks, the first few kept for ever. A creep is a remark, not an alarm; jobs creep for
reasons of their own (allocator, data), and a restart often cures it (detection.md, section 8, trap 2).
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

BLOCK = 50
"""Points in a block."""
ANCHOR_BLOCKS = 6
"""Blocks that make the anchor: 300 points."""
RECENT_BLOCKS = 8
MIN_DRIFT = 0.03
"""Smallest rise that is remarked on: above the 2 % that healthy jobs wander."""
SCATTERS = 4.0
"""And at least so many scatters of a block's median."""
_MAD_TO_SIGMA = 1.4826


class Drift(NamedTuple):
    """The level rose to `slowdown` times the anchored one between iteration `since` and `iteration`, by small steps."""

    since: int
    iteration: int
    slowdown: float


class Anchor:
    """The first healthy level of a series, and the latest. Bounded; feed it healthy points only."""

    def __init__(self) -> None:
        self._block: list[float] = []
        self._anchor: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT_BLOCKS)
        self._since = 0
        self.drift: Drift | None = None

    def add(self, value: float, iteration: int) -> bool:
        """Take one healthy point; True when a drift has just become visible."""
        self._block.append(value)
        if len(self._block) < BLOCK:
            return False
        middle = median(self._block)
        self._block.clear()
        if len(self._anchor) < ANCHOR_BLOCKS:
            self._anchor.append(middle)
            self._since = iteration
            return False
        self._recent.append(middle)
        before, self.drift = self.drift, self._judge(iteration)
        return before is None and self.drift is not None

    def _judge(self, iteration: int) -> Drift | None:
        if len(self._recent) < RECENT_BLOCKS:
            return None
        first, now = median(self._anchor), median(self._recent)
        rise = now / first - 1.0
        scatter = _MAD_TO_SIGMA * median([abs(v / first - 1.0) for v in self._anchor] + [abs(v / now - 1.0) for v in self._recent])
        return Drift(self._since, iteration, now / first) if rise > max(MIN_DRIFT, SCATTERS * scatter) else None
