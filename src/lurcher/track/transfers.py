"""One iteration's events to one row a group and a pair of ranks: how long what passes between them takes with everybody there.

Clock-free, like `reduce.py`: the shortest duration of a collective in its group is the last arriver's, who waited for nobody. A receive
tells less, for its sender leaves at once: of all between two ranks, either way, the shortest is taken. The slower of two stages
finds its input there, so that it is one that did not wait; a link that is slow in one direction only is not seen by it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lurcher.layout import Layout
from lurcher.records import GROUP_KINDS, TRANSFER, Op
from lurcher.track.reduce import SYNCHRONISING

Rows = npt.NDArray[np.void]


def reduce_transfers(events: Rows, layout: Layout) -> Rows:
    """TRANSFER rows of one iteration: its data and tensor groups, then the pairs that passed activations or their gradients."""
    return np.concatenate([_groups(events, layout), _pairs(events)])


def _groups(events: Rows, layout: Layout) -> Rows:
    kinds = {group.id: GROUP_KINDS.index(group.kind) for group in layout.groups() if group.kind in ("tp", "dp")}
    calls = events[np.isin(events["op"], SYNCHRONISING) & np.isin(events["group"], list(kinds))]
    if not len(calls):
        return np.zeros(0, TRANSFER)
    took_s = (calls["end_ns"] - calls["start_ns"]) / 1e9
    keys = tuple(calls[name] for name in ("op", "num_bytes", "seq", "group"))  # the group last: it leads the order
    order = np.lexsort(keys)
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    heads = np.flatnonzero(first)
    shortest_s, each = np.minimum.reduceat(took_s[order], heads), calls[order[heads]]
    begins = np.flatnonzero(np.diff(each["group"], prepend=-1))
    rows = np.zeros(len(begins), TRANSFER)
    counts = np.diff(np.append(begins, len(each)))
    rows["a"], rows["b"], rows["count"] = each["group"][begins], -1, counts
    rows["kind"] = [kinds[int(group)] for group in rows["a"]]
    rows["seconds"] = np.add.reduceat(shortest_s, begins) / counts
    rows["num_bytes"] = np.add.reduceat(each["num_bytes"], begins) // counts
    return rows


def _pairs(events: Rows) -> Rows:
    received = events[events["op"] == Op.RECV]
    if not len(received):
        return np.zeros(0, TRANSFER)
    low, high = np.minimum(received["rank"], received["peer"]), np.maximum(received["rank"], received["peer"])
    took_s = (received["end_ns"] - received["start_ns"]) / 1e9
    order = np.lexsort((took_s, high, low))
    heads = np.flatnonzero((np.diff(low[order], prepend=-1) != 0) | (np.diff(high[order], prepend=-1) != 0))
    rows = np.zeros(len(heads), TRANSFER)
    rows["kind"], rows["a"], rows["b"] = GROUP_KINDS.index("pp"), low[order[heads]], high[order[heads]]
    rows["seconds"], rows["num_bytes"] = took_s[order[heads]], received["num_bytes"][order[heads]]
    rows["count"] = (np.diff(np.append(heads, len(order))) + 1) // 2
    return rows
