"""Events to iterations, against a made-up job whose own work, waiting and transfer are known, and against a slow plain oracle."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.layout import Layout
from lurcher.records import EVENT, WORKLOAD, Op
from lurcher.track.reduce import reduce_events

LAYOUT = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=8)
GROUP_ID = {(group.kind, group.ranks): group.id for group in LAYOUT.groups()}
MS = 1_000_000


def tp_group(rank: int) -> int:
    mates = next(stage.ranks for _, _, stage in LAYOUT.stages() if rank in stage.ranks)
    return GROUP_ID["tp", mates]


def event(rank: int, op: Op, start: int, end: int, *, group: int = -1, seq: int = 0, peer: int = -1, num_bytes: int = 0) -> tuple[int, ...]:
    return (rank, group, op, 4, peer, seq, num_bytes, start, end, 0)


def table(rows: list[tuple[int, ...]]) -> np.ndarray:
    return np.array(rows, dtype=EVENT)


def workload(index: int = 7, num: int = 8) -> np.ndarray:
    return np.array([(index, m, 64, 1000 + m) for m in range(num)], dtype=WORKLOAD)


def pair_of_chunks(busy_a: int, busy_b: int, transfer: int, *, clock_b: int = 0) -> np.ndarray:
    """Ranks 0 and 1 run one forward chunk with two all-reduces: own work, all-reduce, own work, all-reduce."""
    rows, now = [], {0: 0, 1: 0}
    begins = {0: 0, 1: 0}
    for seq in range(2):
        now = {0: now[0] + busy_a, 1: now[1] + busy_b}
        end = max(now.values()) + transfer
        for rank in (0, 1):
            rows.append(event(rank, Op.ALL_REDUCE, now[rank], end, group=tp_group(rank), seq=seq, num_bytes=64))
            now[rank] = end
    for rank in (0, 1):
        rows.append(event(rank, Op.FORWARD, begins[rank], now[rank], seq=3))
    events = table(rows)
    shifted = events["rank"] == 1
    events["start_ns"][shifted] += clock_b
    events["end_ns"][shifted] += clock_b
    return events


def test_slow_mate_is_busy_and_the_other_waits() -> None:
    rows, chunks = reduce_events(pair_of_chunks(10 * MS, 18 * MS, 2 * MS, clock_b=10**15), LAYOUT, workload(), 7, {})
    by_rank = {int(c["rank"]): c for c in chunks}
    assert by_rank[0]["busy_s"] == pytest.approx(0.020)
    assert by_rank[1]["busy_s"] == pytest.approx(0.036)
    assert by_rank[0]["wait_s"] == pytest.approx(0.016)
    assert by_rank[1]["wait_s"] == pytest.approx(0.0)
    assert by_rank[0]["transfer_s"] == by_rank[1]["transfer_s"] == pytest.approx(0.004)
    assert rows["transfer_tp_s"].tolist() == pytest.approx([0.004, 0.004])
    assert rows["num_tokens"].tolist() == [64, 64]
    assert rows["sum_len_sq"].tolist() == [1003, 1003]
    assert np.isnan(rows["expected_s"]).all()


def test_receive_waits_above_the_shortest_receive_and_gaps_leave_it_out() -> None:
    rows = [
        event(2, Op.RECV, 0, 5 * MS, peer=0, seq=0),
        event(2, Op.FORWARD, 6 * MS, 16 * MS, seq=0),
        event(2, Op.RECV, 17 * MS, 18 * MS, peer=0, seq=1),
        event(2, Op.FORWARD, 19 * MS, 29 * MS, seq=1),
        event(2, Op.COMMIT_WAIT, 29 * MS, 30 * MS),
        event(2, Op.INPUT, 30 * MS, 32 * MS),
        event(2, Op.OPTIMIZER, 32 * MS, 35 * MS),
    ]
    iteration, chunks = reduce_events(table(rows), LAYOUT, workload(), 7, {2: (0, 36 * MS)})
    assert iteration["transfer_pp_s"][0] == pytest.approx(0.002)
    assert iteration["wait_s"][0] == pytest.approx(0.004 + 0.001)
    assert iteration["input_s"][0] == pytest.approx(0.002)
    assert iteration["duration_s"][0] == pytest.approx(0.036)
    assert iteration["busy_s"][0] == pytest.approx(0.036 - 0.006 - 0.001 - 0.002)
    assert chunks["gap_s"].tolist() == pytest.approx([0.0, 0.002])
    assert chunks["busy_s"].tolist() == pytest.approx([0.010, 0.010])


def test_pauses_are_taken_out_wherever_they_lie() -> None:
    rows = [
        event(0, Op.COMMIT_WAIT, 0, 12 * MS),
        event(0, Op.PAUSE, 2 * MS, 10 * MS),
        event(0, Op.PAUSE, 4 * MS, 9 * MS),
        event(0, Op.FORWARD, 13 * MS, 20 * MS, seq=1),
    ]
    iteration, chunks = reduce_events(table(rows), LAYOUT, workload(), 7, {0: (0, 20 * MS)})
    assert iteration["duration_s"][0] == pytest.approx(0.012)
    assert iteration["wait_s"][0] == pytest.approx(0.004)
    assert chunks["busy_s"][0] == pytest.approx(0.007)


def test_overlapped_collectives_are_not_counted_twice() -> None:
    world = GROUP_ID["world", LAYOUT.ranks]
    rows = [event(r, Op.ALL_REDUCE, 10 * MS, 20 * MS, group=world, seq=0, num_bytes=8) for r in (0, 1)]
    rows += [event(r, Op.ALL_REDUCE, 11 * MS, 23 * MS, group=world, seq=1, num_bytes=8) for r in (0, 1)]
    iteration, _ = reduce_events(table(rows), LAYOUT, workload(), 7, {0: (0, 30 * MS), 1: (0, 30 * MS)})
    assert iteration["transfer_world_s"].tolist() == pytest.approx([0.013, 0.013])
    assert iteration["busy_s"].tolist() == pytest.approx([0.017, 0.017])


def test_missing_duplicated_and_unknown_events_do_no_harm() -> None:
    events = pair_of_chunks(10 * MS, 18 * MS, 2 * MS)
    rows, chunks = reduce_events(events, LAYOUT, workload(), 7, {})
    again, chunks_again = reduce_events(np.concatenate([events, events])[::-1], LAYOUT, workload(), 7, {})
    assert rows.tobytes() == again.tobytes()
    assert chunks.tobytes() == chunks_again.tobytes()
    without = events[~((events["rank"] == 1) & (events["op"] == Op.ALL_REDUCE) & (events["seq"] == 1))]
    partial, _ = reduce_events(without, LAYOUT, workload(), 7, {})
    assert partial["busy_s"][0] == pytest.approx(rows["busy_s"][0])
    stray = table([event(0, Op.ALL_REDUCE, 0, MS, group=999, seq=1), event(1, Op.FORWARD, 0, MS, seq=4711)])
    odd, _ = reduce_events(stray, LAYOUT, workload(), 7, {0: (0, 2 * MS)})
    assert odd["transfer_world_s"][0] == pytest.approx(0.001)
    assert odd["num_tokens"].tolist() == [0, 0]


def test_no_events_at_all() -> None:
    rows, chunks = reduce_events(np.zeros(0, dtype=EVENT), LAYOUT, workload(), 7, {})
    assert len(rows) == 0 and len(chunks) == 0
    rows, _ = reduce_events(np.zeros(0, dtype=EVENT), LAYOUT, workload(), 7, {3: (5, 5 + 10**9)})
    assert rows["rank"].tolist() == [3]
    assert rows["busy_s"].tolist() == [1.0]


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([Op.ALL_REDUCE, Op.BROADCAST, Op.SEND, Op.RECV, Op.COMMIT_WAIT, Op.FORWARD, Op.BACKWARD, Op.INPUT, Op.OPTIMIZER, Op.PAUSE]),
        st.integers(0, 200),
        st.integers(0, 60),
        st.integers(-1, 12),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_parts_add_up_to_the_iteration(drawn: list[tuple[int, Op, int, int, int, int]]) -> None:
    """Any events whatever: busy + wait + transfer + input = duration, nothing negative, and the covered time is the plain union."""
    rows = [event(r, op, s * MS, (s + length) * MS, group=g, seq=q) for r, op, s, length, g, q in drawn]
    windows = dict.fromkeys(range(4), (0, 260 * MS))
    iteration, chunks = reduce_events(table(rows), LAYOUT, workload(), 7, windows)
    transfer = sum(iteration[f"transfer_{kind}_s"] for kind in ("tp", "dp", "pp", "world"))
    total = iteration["busy_s"] + iteration["wait_s"] + transfer + iteration["input_s"]
    assert total == pytest.approx(iteration["duration_s"], abs=1e-9)
    for row in iteration:
        busy_ms = _plain_busy_ms([e for e in drawn if e[0] == row["rank"]])
        assert row["busy_s"] * 1e3 == pytest.approx(busy_ms)
    for name in ("busy_s", "wait_s", "transfer_s", "gap_s"):
        assert (chunks[name] >= 0).all()


def _plain_busy_ms(events: list[tuple[int, Op, int, int, int, int]]) -> int:
    """Millisecond by millisecond: no pause, no communication, no input."""
    busy = 0
    taken = [(op, s, s + length) for _, op, s, length, _, _ in events if op not in (Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)]
    for ms in range(260):
        busy += not any(s <= ms < e for _, s, e in taken)
    return busy


def test_eight_ranks_of_four_hundred_events_take_milliseconds() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for rank in range(8):
        now = 0
        for k in range(80):
            start = now
            for seq in range(4):
                rows.append(event(rank, Op.ALL_REDUCE, now + MS, now + 2 * MS + int(rng.integers(1000)), group=tp_group(rank), seq=4 * k + seq))
                now += 3 * MS
            rows.append(event(rank, Op.FORWARD, start, now, seq=k % 8))
    events = table(rows)
    windows = dict.fromkeys(range(8), (0, 2000 * MS))
    times = []
    for _ in range(7):
        begin = time.process_time()
        reduce_events(events, LAYOUT, workload(), 7, windows)
        times.append(time.process_time() - begin)
    assert len(events) == 8 * 400
    assert min(times) < 0.01  # 2 ms on a quiet machine
