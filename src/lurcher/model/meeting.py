"""What the ranks of a stage lose to each other in a chunk: transfer, and waiting that no rank's own work explains.

All mates leave a chunk together, at its last collective. The shortest of their chunk times runs from the last arrival, and
what it has above the slowest mate's own work is the price of meeting: transfer, and the scatter of every collective on the way.
It recurs with every chunk, so it belongs to the micro-batch and not to the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def meeting_s(chunks: NDArray[Any], stages: Sequence[tuple[int, ...]]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """CHUNK rows of ranks in `stages`, reordered, and beside each the seconds that its stage lost in that chunk (>= 0)."""
    stage_of = {rank: number for number, ranks in enumerate(stages) for rank in ranks}
    stage = np.array([stage_of.get(int(rank), -1) for rank in chunks["rank"]], dtype=np.intp)
    order = np.lexsort((chunks["microbatch"], chunks["phase"], stage))
    order = order[stage[order] >= 0]
    rows, stage = chunks[order], stage[order]
    if not len(rows):
        return rows, np.empty(0)
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (np.diff(stage) != 0) | (np.diff(rows["microbatch"]) != 0) | (rows["phase"][1:] != rows["phase"][:-1])
    first = np.flatnonzero(new)
    shortest = np.minimum.reduceat(rows["busy_s"] + rows["wait_s"] + rows["transfer_s"], first)
    slowest = np.maximum.reduceat(rows["busy_s"], first)
    lost_s = np.maximum(shortest - slowest, np.minimum.reduceat(rows["transfer_s"], first))
    return rows, lost_s[np.cumsum(new) - 1]
