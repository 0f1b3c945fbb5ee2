"""How far the points of a healthy series hang together: what that adds to the variance of a sum, and so to every score of a segment."""

from __future__ import annotations

from math import sqrt

from lurcher.detect.correlation import inflation

LAG_POINTS = 600
"""Points over which the lag-1 correlation is averaged."""
BLOCK = 16
"""Points in a block whose mean is compared with what the lag-1 correlation explains."""
BLOCKS = 40
MAX_PHI = 0.9
"""The source's cap (detection.md, section 5)."""
_MAX_SQUARE = 64.0


class Memory:
    """Lag-1 correlation of a series in units of its scatter, and what longer memory adds on top. Constant size.

    An AR(1) series is described by `phi` alone. One that also wanders is not: the means of its blocks then vary more than
    phi explains, and `excess` says by how much.
    """

    def __init__(self) -> None:
        self._product, self._square, self.num_points = 0.0, 0.0, 0
        self._block_sum, self._block_length = 0.0, 0
        self._block_square, self._num_blocks = 0.0, 0
        self.phi = min(MAX_PHI, _width(0))
        """Lag-1 correlation, widened by what its estimate may be off, of 0..0.9."""
        self.excess = 1.0
        """Variance of a sum over what phi explains, at least 1; only what exceeds the estimate's own error counts."""

    def add(self, z: float, previous_z: float) -> None:
        """Take one healthy point and the one before it."""
        self.num_points += 1
        rate = 1.0 / min(self.num_points, LAG_POINTS)
        self._product += rate * (z * previous_z - self._product)
        self._square += rate * (z * z - self._square)
        phi = (self._product / self._square if self._square > 0.0 else 0.0) + _width(self.num_points)
        self.phi = min(MAX_PHI, max(0.0, phi))
        self._block_sum += z
        self._block_length += 1
        if self._block_length == BLOCK:
            self._add_block()

    def _add_block(self) -> None:
        self._num_blocks += 1
        num = min(self._num_blocks, BLOCKS)
        square = min(_MAX_SQUARE, self._block_sum * self._block_sum / BLOCK)
        self._block_square += (square - self._block_square) / num
        self._block_sum, self._block_length = 0.0, 0
        # A variance estimated from n normal blocks has a relative error of sqrt(2 / n).
        self.excess = max(1.0, self._block_square / inflation(BLOCK, self.phi) - sqrt(2.0 / num))


def _width(num_points: int) -> float:
    """By how much phi may be more than it seems.

    Its standard error; and, while there are few points, that a stretch about its own median seems to hang together less than the series does
    (by (1 + 3 phi) / n, Kendall, Biometrika 41, 1954) and that it may be one wave of it: before the first point nothing below MAX_PHI is ruled out.
    """
    return 1.0 / sqrt(num_points + 10) + 8.0 / (num_points + 10)
