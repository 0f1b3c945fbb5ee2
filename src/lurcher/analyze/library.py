"""`lurcher.analyze`: the diagnosis as one call, of files or of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.values import Verdict
from lurcher.errors import UserError
from lurcher.ingest.arrays import from_arrays
from lurcher.ingest.log import Log
from lurcher.ingest.read import read_log, read_logs

Input: TypeAlias = "str | PathLike[str] | npt.ArrayLike"
"""A file or run directory by its path, or the durations themselves."""


def analyze(
    durations_s: Input,
    num_tokens: npt.ArrayLike | None = None,
    sum_len_sq: npt.ArrayLike | None = None,
    rank: npt.ArrayLike | None = None,
    baseline: Input | Sequence[Input] | None = None,
) -> Verdict:
    """The verdict on one job, as `lurcher analyze` gives it.

    durations_s: seconds of each iteration, shape (rows,), NaN where one is not known; or the path of a log, table or run directory.
    num_tokens, sum_len_sq: the work of each row (sum of squared document lengths), where known: then work is not taken for slowness.
    rank: whose row it is, where each rank has its own; an iteration is then a rank's n-th row. baseline: one or several sibling runs
    of the same code and schedule, as paths or arrays.

    Iterations in the answer are the file's own numbers; those of arrays count from 0. Raises lurcher.errors.UserError, in one line.
    """
    if not _is_path(durations_s):
        return analyze_log(from_arrays(durations_s, num_tokens, sum_len_sq, rank), _siblings(baseline))
    path = _path(durations_s)
    if num_tokens is not None or sum_len_sq is not None or rank is not None:
        raise UserError(f"{path} is a file, and what is known beside its durations stands in it; give the other arrays with arrays only")
    return analyze_log(read_log(path), _siblings(baseline))


def _siblings(baseline: Any) -> tuple[Log, ...]:
    if baseline is None:
        return ()
    one = _is_path(baseline) or not (isinstance(baseline, (list, tuple)) and any(_is_path(item) or np.ndim(item) for item in baseline))
    found: list[Log] = []
    for number, item in enumerate([baseline] if one else baseline):
        found += read_logs([_path(item)]) if _is_path(item) else [from_arrays(item, name=f"baseline {number}")]
    return tuple(found)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, PathLike))


def _path(value: Any) -> Path:
    return Path(value)
