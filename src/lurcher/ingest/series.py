"""Growing columns of numbers: what every reader fills, and the only thing it holds of a large file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError

MAX_ROWS = 80_000_000
"""Rows of one series; records.ITERATION takes 116 bytes a row, so that this is 9 GB."""


class Series:
    """Rows in the order of appearance: iteration, rank, number of the line, and the float columns `names`."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.path = path
        self.names = tuple(names)
        self.notes: list[str] = []
        self._ints = (array("q"), array("q"), array("q"))
        self._floats = tuple(array("d") for _ in names)

    def __len__(self) -> int:
        return len(self._ints[0])

    def append(self, index: int, rank: int, line: int, values: Sequence[float]) -> None:
        """One row; `values` in the order of `names`."""
        for column, number in zip(self._ints, (index, rank, line), strict=True):
            column.append(number)
        for place, value in zip(self._floats, values, strict=True):
            place.append(value)
        if len(self) > MAX_ROWS:
            self._refuse()

    def extend(
        self, index: npt.NDArray[np.int64], rank: npt.NDArray[np.int64], line: npt.NDArray[np.int64], values: Iterable[npt.NDArray[np.float64]]
    ) -> None:
        """Many rows at once."""
        for column, numbers in zip(self._ints, (index, rank, line), strict=True):
            column.frombytes(np.ascontiguousarray(numbers, np.int64).tobytes())
        for place, block in zip(self._floats, values, strict=True):
            place.frombytes(np.ascontiguousarray(block, np.float64).tobytes())
        if len(self) > MAX_ROWS:
            self._refuse()

    def _refuse(self) -> None:
        raise UserError(f"{self.path} holds more than {MAX_ROWS:,} rows, which is the most one series may have; split it by rank or by iteration")

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Iteration numbers. The arrays are copies: the series may go on growing."""
        return np.array(self._ints[0], np.int64)

    @property
    def rank(self) -> npt.NDArray[np.int64]:
        """Ranks."""
        return np.array(self._ints[1], np.int64)

    @property
    def line(self) -> npt.NDArray[np.int64]:
        """Numbers of the lines the rows come from, from 1; rows of files without lines are counted."""
        return np.array(self._ints[2], np.int64)

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A float column."""
        return np.array(self._floats[self.names.index(name)], np.float64)
