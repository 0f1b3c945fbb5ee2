"""The recorder of one rank: what the rank did, as EVENT rows. numpy only, cheap enough to leave on.

A call appends one tuple to a list, which is several times cheaper than writing a row of a structured array; the rows are
made when they are drained. Memory is bounded: above the capacity events are counted, not kept, and never raise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lurcher.records import EVENT

DEFAULT_CAPACITY = 1 << 16
"""Events kept between two drains: some hundred iterations of the demo's rank."""


class Recorder:
    """Events of `rank`, in the order in which they were recorded.

    `num_dropped` counts the events lost because nobody drained the recorder in time.
    """

    def __init__(self, rank: int, capacity: int = DEFAULT_CAPACITY) -> None:
        self._rank = rank
        self._capacity = capacity
        self._rows: list[tuple[int, ...]] = []
        self.num_dropped = 0

    def record(self, op: int, group: int, seq: int, peer: int, num_bytes: int, dtype: int, start_ns: int, end_ns: int) -> None:
        """Add one event; times are `time.monotonic_ns`, `dtype` is bytes per element. Fields as in `records.EVENT`."""
        if len(self._rows) >= self._capacity:
            self.num_dropped += 1
            return
        self._rows.append((self._rank, group, op, dtype, peer, seq, num_bytes, start_ns, end_ns, 0))

    def drain(self) -> npt.NDArray[np.void]:
        """The EVENT rows recorded since the last drain, as a new array."""
        rows, self._rows = self._rows, []
        return np.array(rows, dtype=EVENT)
