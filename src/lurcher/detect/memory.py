"""How far the points of a healthy series hang together: what that adds to the variance of a sum, and so to every score of a segment."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from lurcher.detect.correlation import inflation
from lurcher.detect.focus import Inside

LAG_POINTS = 600
"""Points over which the lag-1 correlation is averaged."""
BLOCK = 16
"""Points in a block whose mean is compared with what the lag-1 correlation explains."""
BLOCKS = 40
MAX_PHI = 0.9
"""The source's cap (detection.md, section 5)."""
FEWEST = 8
"""With fewer points in a stretch nothing below MAX_PHI is ruled out."""
_FEW = 6.0
"""What is added to phi's standard error, divided by the number of points: a stretch may be one wave of its series, and seems calm then."""
_MAX_SQUARE = 64.0


class Correlation(NamedTuple):
    """What is known of a series' memory.

    `phi`: lag-1 correlation, widened by what its estimate may be off, of 0..0.9. `excess`: variance of a sum over what phi
    explains, at least 1. `num_points`: how many points say so.
    """

    phi: float
    excess: float
    num_points: float


class Memory:
    """Lag-1 correlation of a series in units of its scatter, and what longer memory adds on top. Constant size.

    An AR(1) series is described by phi alone. One that also wanders is not: the means of its blocks then vary more than
    phi explains, and `excess` says by how much; only what exceeds the estimate's own error counts.
    """

    def __init__(self) -> None:
        self._product, self._square, self._num = 0.0, 0.0, 0
        self._block_sum, self._block_length = 0.0, 0
        self._block_square, self._num_blocks = 0.0, 0
        self.known = Correlation(MAX_PHI, 1.0, 0.0)

    def add(self, z: float, previous_z: float) -> None:
        """Take one healthy point and the one before it."""
        self._num = min(LAG_POINTS, self._num + 1)
        self._product += (z * previous_z - self._product) / self._num
        self._square += (z * z - self._square) / self._num
        self._block_sum += z
        self._block_length += 1
        if self._block_length == BLOCK:
            self._add_block()
        phi = _most(self._product, self._square, self._num, 1)
        self.known = Correlation(phi, self._excess(phi), self._num)

    def with_segment(self, segment: Inside) -> Correlation:
        """The same, where the points of a segment also count, about their own mean: how it moves inside tells a wave from a new level.

        A segment that scatters more than the series did speaks against the series' scatter; one whose points are all clipped says nothing.
        """
        phi = _most(self._num * self._product + segment.product, self._num * self._square + segment.square, self._num + segment.told, 2)
        wider = max(1.0, (self._num + segment.square) / (self._num + segment.length))
        return Correlation(phi, wider * self._excess(phi), self._num + segment.told)

    def _add_block(self) -> None:
        self._num_blocks = min(BLOCKS, self._num_blocks + 1)
        square = min(_MAX_SQUARE, self._block_sum * self._block_sum / BLOCK)
        self._block_square += (square - self._block_square) / self._num_blocks
        self._block_sum, self._block_length = 0.0, 0

    def _excess(self, phi: float) -> float:
        # A variance estimated from n normal blocks has a relative error of sqrt(2 / n).
        return max(1.0, self._block_square / inflation(BLOCK, phi) - sqrt(2.0 / max(1, self._num_blocks)))


def _most(product: float, square: float, num_points: float, num_stretches: int) -> float:
    """The largest phi that so many points, each stretch about its own mean, leave likely.

    The estimate without its bias (a stretch of n points seems to hang together less than its series does, by (1 + 3 phi) / n:
    Kendall, Biometrika 41, 1954), and its standard error on top.
    """
    if num_points < FEWEST * num_stretches:
        return MAX_PHI
    lost = num_stretches / num_points
    seen = product / square if square > 0.0 else 0.0
    return min(MAX_PHI, max(0.0, (seen + lost) / (1.0 - 3.0 * lost) + 1.0 / sqrt(num_points) + _FEW / num_points))
