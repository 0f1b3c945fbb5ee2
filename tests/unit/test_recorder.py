"""The recorder keeps what it is told, in order, and never more than its capacity."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lurcher.probe.recorder import Recorder
from lurcher.records import EVENT, Op

counts = st.integers(min_value=0, max_value=2**40)
calls = st.tuples(st.sampled_from(list(Op)), st.integers(-1, 50), counts, st.integers(-1, 50), counts, st.sampled_from([0, 2, 4, 8]), counts, counts)


@given(st.lists(calls, max_size=20))
def test_drain_returns_every_field_in_order(recorded):
    recorder = Recorder(rank=3)
    for call in recorded:
        recorder.record(*call)
    rows = recorder.drain()
    assert rows.dtype == EVENT
    names = ("op", "group", "seq", "peer", "num_bytes", "dtype", "start_ns", "end_ns")
    assert [tuple(int(row[name]) for name in names) for row in rows] == [tuple(map(int, call)) for call in recorded]
    assert np.all(rows["rank"] == 3)
    assert np.all(rows["device_ns"] == 0)


def test_drain_empties_and_keeps_earlier_rows_unchanged():
    recorder = Recorder(rank=0)
    recorder.record(Op.SEND, 1, 7, 2, 64, 4, 10, 20)
    first = recorder.drain()
    recorder.record(Op.RECV, 1, 8, 2, 64, 4, 30, 40)
    second = recorder.drain()
    assert first["seq"].tolist() == [7]
    assert second["seq"].tolist() == [8]
    assert len(recorder.drain()) == 0


def test_events_above_the_capacity_are_counted_not_kept():
    recorder = Recorder(rank=0, capacity=3)
    for seq in range(5):
        recorder.record(Op.SEND, 0, seq, 1, 0, 0, 0, 0)
    assert recorder.num_dropped == 2
    assert recorder.drain()["seq"].tolist() == [0, 1, 2]
    recorder.record(Op.SEND, 0, 9, 1, 0, 0, 0, 0)
    assert recorder.drain()["seq"].tolist() == [9]
