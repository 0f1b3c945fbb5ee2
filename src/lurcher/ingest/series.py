"""Growing columns of numbers: what every reader fills, and the only thing it holds of a large file."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError

Number = TypeVar("Number", bound=np.generic)

MAX_ROWS = 80_000_000
"""Rows of one series; records.ITERATION takes 116 bytes a row, so that this is 9 GB."""


class Lines:
    """Where the rows of a series stand in its file. Rows that follow each other line by line cost nothing: only the first of them is kept."""

    def __init__(self) -> None:
        self._rows, self._lines = array("q"), array("q")
        self._next = -1

    def add(self, row: int, line: int, num_rows: int = 1) -> None:
        """Rows `row` .. `row + num_rows - 1` stand at `line` and the lines after it."""
        if line != self._next:
            self._rows.append(row)
            self._lines.append(line)
        self._next = line + num_rows

    def at(self, row: int) -> int:
        """The line of one row."""
        run = bisect_right(self._rows, row) - 1
        return self._lines[run] + row - self._rows[run]


class Series:
    """Rows in the order of appearance: iteration, rank, and the float columns `names`.

    `where` says what the numbers of its lines count, in messages: "line", "row" or "entry".
    """

    def __init__(self, path: str, names: Sequence[str], where: str = "line") -> None:
        self.path, self.where = path, where
        self.names = tuple(names)
        self.notes: list[str] = []
        self.lines = Lines()
        self._index, self._rank = array("q"), array("i")
        self._floats = tuple(array("d") for _ in names)

    def __len__(self) -> int:
        return len(self._index)

    def append(self, index: int, rank: int, line: int, values: Sequence[float]) -> None:
        """One row; `values` in the order of `names`."""
        row = len(self._index)
        self.lines.add(row, line)
        self._index.append(index)
        self._rank.append(rank)
        for column, value in zip(self._floats, values, strict=True):
            column.append(value)
        if row >= MAX_ROWS:
            self._refuse()

    def extend(
        self, index: npt.NDArray[np.int64], rank: npt.NDArray[np.int64] | None, line: npt.NDArray[np.int64], values: Iterable[npt.NDArray[np.float64]]
    ) -> None:
        """Many rows at once; without ranks all are of rank 0."""
        if not len(index):
            return
        starts = np.flatnonzero(np.diff(line, prepend=line[0] - 2) != 1)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(line)], strict=True):
            self.lines.add(len(self) + start, int(line[start]), end - start)
        self._index.frombytes(np.ascontiguousarray(index, np.int64).tobytes())
        self._rank.frombytes((np.zeros(len(index), np.int32) if rank is None else np.ascontiguousarray(rank, np.int32)).tobytes())
        for column, block in zip(self._floats, values, strict=True):
            column.frombytes(np.ascontiguousarray(block, np.float64).tobytes())
        if len(self) > MAX_ROWS:
            self._refuse()

    def renumbered(self, names: Sequence[str], index: npt.NDArray[np.int64] | None = None, *, ranks: bool = True) -> Series:
        """The same rows with the columns `names` alone, other iterations where `index` is given, and without ranks where `ranks` is False."""
        other = Series(self.path, names, self.where)
        other.notes, other.lines = self.notes, self.lines
        other._index = array("q", np.ascontiguousarray(index, np.int64).tobytes()) if index is not None else self._index
        other._rank = self._rank if ranks else array("i", bytes(4 * len(self)))
        other._floats = tuple(self._floats[self.names.index(name)] for name in names)
        return other

    def _refuse(self) -> None:
        raise UserError(f"{self.path} holds more than {MAX_ROWS:,} rows, which is the most one series may have; split it by rank or by iteration")

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Iteration numbers. The arrays are views, for a copy of a large file's would not fit: a series that is looked at grows no more."""
        return _view(self._index, np.int64)

    @property
    def rank(self) -> npt.NDArray[np.int32]:
        """Ranks."""
        return _view(self._rank, np.int32)

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A float column."""
        return _view(self._floats[self.names.index(name)], np.float64)


def _view(numbers: array[Any], kind: type[Number]) -> npt.NDArray[Number]:
    seen = np.frombuffer(numbers, kind) if len(numbers) else np.empty(0, kind)
    seen.setflags(write=False)
    return seen
