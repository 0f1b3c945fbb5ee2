"""The border value: one series of iterations read from one file, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then with the bytes read so far and the bytes in all."""


@dataclass(frozen=True, eq=False)
class Log:
    """One series: a file, one series of a file that holds several (`FILE#NAME`), or a run directory.

    `rows` are records.ITERATION, read-only, sorted by (index, rank), each pair once. Where `relative` holds, the input does not say in which
    unit its durations are, and only their ratios mean something; otherwise they are seconds.
    What the input does not carry is NaN (floats) or 0 (integers); `columns` names what it carries, out of COLUMNS.
    `stride`: iterations from one row to the next where a line is printed every so many. `restarts`: iterations at which the
    input went back to an earlier one and repeated it. `notes`: sentences on what was left out, repaired or assumed.
    """

    path: str
    format: str
    rows: npt.NDArray[np.void]
    columns: frozenset[str]
    stride: int = 1
    num_ranks: int = 1
    notes: tuple[str, ...] = ()
    restarts: tuple[int, ...] = ()
    relative: bool = False


COLUMNS = ("duration_s", "rank", "num_tokens", "sum_len_sq", "busy_s", "wait_s", "transfer_s", "input_s", "host_s", "expected_s")
"""What `Log.columns` may name. `transfer_s` stands for all kinds of groups; a sum over kinds lies in `transfer_world_s`."""
