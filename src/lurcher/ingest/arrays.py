"""A series that is already in memory: arrays with an entry a row, as `lurcher.analyze` takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.finish import to_log
from lurcher.ingest.log import Log
from lurcher.ingest.quantity import MAX_RANK
from lurcher.ingest.series import Series


def from_arrays(durations_s: Any, num_tokens: Any = None, sum_len_sq: Any = None, rank: Any = None, name: str = "durations_s") -> Log:
    """The Log of durations in seconds, shape (rows,). The others have the same shape, or are None where they are not known.

    Without `rank` a row is an iteration, numbered from 0; with it a row is one rank's, and each rank's rows are numbered from 0.
    `name` stands for the path. Raises UserError where an array is of another shape, holds no numbers, or no duration above zero.
    """
    duration = _numbers(name, durations_s)
    columns = {"duration_s": duration}
    for other, values in (("num_tokens", num_tokens), ("sum_len_sq", sum_len_sq)):
        if values is not None:
            columns[other] = _numbers(other, values, len(duration))
    index, ranks = np.arange(len(duration)), np.zeros(len(duration), np.int64)
    if rank is not None:
        ranks = _ranks(_numbers("rank", rank, len(duration)))
        index = _turns(ranks)
    series = Series(name, tuple(columns), "entry")
    series.extend(index, ranks, np.arange(1, len(duration) + 1), columns.values())
    return to_log(series, "arrays", columns, ranks_known=rank is not None)


def _numbers(name: str, values: Any, length: int | None = None) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} does not hold numbers ({error}); give an array of numbers, NaN where one is not known") from error
    if array.ndim != 1 or (length is not None and len(array) != length):
        wanted = "one number an iteration" if length is None else f"{length} numbers, as many as durations"
        raise UserError(f"{name} has shape {array.shape}; give {wanted}, in one dimension")
    if not len(array):
        raise UserError(f"{name} is empty; give at least one iteration")
    return array


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    bad = ~((values >= 0) & (values <= MAX_RANK) & (values == np.floor(values)))
    if bad.any():
        raise UserError(f"rank holds {values[bad][0]:g} at entry {int(bad.argmax()) + 1}; a rank is a whole number from 0 to {MAX_RANK:,}")
    return values.astype(np.int64)


def _turns(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row, how many rows of its rank came before it."""
    order = np.argsort(ranks, kind="stable")
    begins = np.flatnonzero(np.diff(ranks[order], prepend=-1))
    sizes = np.diff(begins, append=len(ranks))
    turns = np.empty(len(ranks), np.int64)
    turns[order] = np.arange(len(ranks)) - np.repeat(begins, sizes)
    return turns
