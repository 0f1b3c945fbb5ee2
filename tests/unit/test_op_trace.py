"""Readers of operation traces: Parquet, Chrome timelines and run directories; what is broken is one clear line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run

from lurcher.errors import UserError
from lurcher.ingest.op_trace import COLUMNS, OP_NAMES, OpTrace
from lurcher.ingest.op_trace_read import is_trace, read_trace
from lurcher.ingest.op_trace_run import read_run_trace
from lurcher.localize.whatif import analyse
from lurcher.runlog import RunWriter


@pytest.fixture
def small(made: ModuleType, tmp_path: Path) -> Path:
    """A trace of two replicas of two stages, three steps."""
    path = tmp_path / "trace-small.parquet"
    made.write(path, made.made_trace(2, 2, 3, 3))
    return path


def edited(path: Path, change: Any) -> Path:
    """The file with its columns changed: `change` gets them as a dict of arrays or lists."""
    table = pq.read_table(path)
    columns = {name: table[name].to_numpy() if name != "optype" else table[name].to_pylist() for name in table.column_names}
    pq.write_table(pa.table(change(columns)), path)
    return path


def kept(mask: np.ndarray) -> Any:
    return lambda columns: {name: [v for v, keep in zip(values, mask, strict=True) if keep] for name, values in columns.items()}


def message(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        analyse(read_trace(path))
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 500
    return text


def test_rows_come_back_as_they_were_written(made: ModuleType, small: Path) -> None:
    trace, written = read_trace(small), made.made_trace(2, 2, 3, 3)
    for name in ("dp", "stage", "step", "op", "start_s", "duration_s", "seq", "chunk", "microbatch", "model_chunk"):
        assert (getattr(trace, name) == getattr(written, name)).all()
    assert trace.start_s.dtype == np.float32  # the precision of the stamps is kept
    assert "a worker is counted as one GPU" in trace.notes[0]


def test_sizes_beside_the_file_are_used_and_checked(small: Path) -> None:
    meta = small.with_name("meta-small.yaml")
    meta.write_text("trial_name: small\ndp_size: 2\ndsp_size: 2\npp_size: 2\ntp_size: 4\nworld_size: 32\n")
    trace = read_trace(small)
    assert trace.ranks_per_worker == 8 and trace.notes == ()
    meta.write_text("dp_size: 3\npp_size: 2\n")
    assert "has 2 replicas, the file with its sizes says dp_size 3" in message(small)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(small: Path, column: str) -> None:
    edited(small, lambda columns: {name: values for name, values in columns.items() if name != column})
    assert is_trace(small)  # so that the command can say what is missing
    assert f"lacks the column {column}" in message(small)


def test_a_missing_worker_replica_step_or_row_is_named(small: Path) -> None:
    columns = pq.read_table(small)
    dp, stage, step = (columns[name].to_numpy() for name in ("dp_rank", "stage", "step"))
    original = small.read_bytes()
    rng = np.random.default_rng(0)
    lost = np.ones(len(dp), bool)
    lost[rng.integers(len(dp))] = False
    for mask, words in (
        (~((dp == 1) & (stage == 1)), "operations, the first .* of stage 1 of dp1 in step 0"),
        (dp != 0, "no row of dp_rank 0"),
        (stage != 0, "no row of stage 0"),
        (~((dp == 1) & (step == 2)), "of dp1 in step 2; give every worker's rows"),
        (~((dp == 0) & (step == 0)), "no row of dp_rank 0 in step 0"),
        (lost, "lacks 1 operation, the first|which dp0 in step 0 lacks|has no partner|need one"),
    ):
        small.write_bytes(original)
        edited(small, kept(mask))
        text = message(small)
        assert re.search(words, text), text


def test_computation_that_takes_no_time_is_refused(small: Path) -> None:
    edited(small, lambda columns: columns | {"duration": np.where(columns["stage"] == 1, 0.0, columns["duration"])})
    assert "all forward passes of stage 1 take 0 s" in message(small)


def test_a_row_twice_is_named(small: Path) -> None:
    edited(small, lambda columns: {name: [*values, values[7]] for name, values in columns.items()})
    assert "twice (row " in message(small)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("duration", -0.25, "duration is -0.25 s, allowed is 0 or more"),
        ("duration", float("nan"), "duration is nan"),
        ("start_ts", float("inf"), "start_ts is inf"),
        ("dp_rank", -1, "dp_rank is -1"),
        ("optype", "forward-dance", "kind 'forward-dance'; known are forward-compute"),
    ],
)
def test_a_bad_value_is_named_with_its_row(small: Path, column: str, value: Any, words: str) -> None:
    def change(columns: dict[str, Any]) -> dict[str, Any]:
        values = list(columns[column])
        values[4] = value
        return columns | {column: values}

    edited(small, change)
    text = message(small)
    assert words in text and (column == "optype" or "row 5 (" in text)


def test_empty_cells_and_text_for_numbers_are_named(small: Path) -> None:
    original = small.read_bytes()
    edited(small, lambda columns: columns | {"stage": [None, *columns["stage"][1:].tolist()]})
    assert "column stage has 1 empty rows" in message(small)
    small.write_bytes(original)
    edited(small, lambda columns: columns | {"duration": [str(v) for v in columns["duration"]]})
    assert "column duration holds string; give numbers" in message(small)
    small.write_bytes(original)
    edited(small, lambda columns: columns | {"seq_id": [v + 0.5 for v in columns["seq_id"]]})
    assert "column seq_id has values that are no whole numbers" in message(small)


def test_no_rows_and_a_cut_file(small: Path) -> None:
    data = small.read_bytes()
    pq.write_table(pq.read_table(small).slice(0, 0), small)
    assert "no operation" in message(small)
    small.write_bytes(data[: len(data) // 2])
    assert not is_trace(small)
    assert "may be cut off" in message(small)


def test_shuffled_rows_and_other_integer_types_change_nothing(small: Path) -> None:
    before = analyse(read_trace(small)).what_if
    order = np.random.default_rng(1).permutation(len(pq.read_table(small)))
    edited(
        small,
        lambda columns: {
            name: np.array(values)[order].astype(np.int64) if name in ("stage", "seq_id") else np.array(values)[order]
            for name, values in columns.items()
        },
    )
    after = analyse(read_trace(small)).what_if
    assert (before.only_worker_s == after.only_worker_s).all() and before.slowdown == after.slowdown


def chrome(trace: OpTrace, *, named: bool) -> list[dict[str, Any]]:
    """As the published timelines have it (`named`: replica and stage in the names of process and thread), or with both in `args`."""
    events: list[dict[str, Any]] = []
    for i in range(len(trace)):
        args = {"step": int(trace.step[i]), "seq_id": int(trace.seq[i]), "mb_id": int(trace.microbatch[i]), "model_chunk": int(trace.chunk[i])}
        place = {"pid": int(trace.dp[i]), "tid": 5 * int(trace.stage[i])}
        if not named:
            args |= {"dp_rank": int(trace.dp[i]), "stage": int(trace.stage[i]), "rank": int(trace.rank[i])}
            place = {"pid": 7, "tid": "any"}
        times = {"ts": float(trace.start_s[i]) * 1e6, "dur": float(trace.duration_s[i]) * 1e6}
        events.append({"ph": "X", "name": OP_NAMES[trace.op[i]], "cat": "x", **place, **times, "args": args})
    for dp in np.unique(trace.dp).tolist() if named else ():
        events.append({"ph": "M", "name": "process_name", "pid": dp, "args": {"name": f"DP rank [{dp}]"}})
        for stage in np.unique(trace.stage).tolist():
            events.append({"ph": "M", "name": "thread_name", "pid": dp, "tid": 5 * stage, "args": {"name": f"PP rank {stage}, TP rank 0, compute"}})
    events.append({"ph": "X", "name": "something else", "pid": 0, "tid": 0, "ts": 0, "dur": 1})
    return events


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_timeline_is_the_same_trace(made: ModuleType, tmp_path: Path, named: bool, packed: bool) -> None:
    trace = made.made_trace(3, 2, 4, 2, slow={(1, 2): 1.5})
    events = chrome(trace, named=named)
    data = json.dumps(events if named else {"traceEvents": events}).encode()
    path = tmp_path / "any.name"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert is_trace(path)
    found, expected = analyse(read_trace(path)), analyse(trace)
    assert found.what_if.only_worker_s == pytest.approx(expected.what_if.only_worker_s, rel=1e-5)
    assert [(w.dp, w.stage) for w in found.slow] == [(1, 2)]
    assert found.ranks_of(1, 2) == (() if named else expected.ranks_of(1, 2))


def test_a_broken_timeline_is_one_clear_line(made: ModuleType, tmp_path: Path) -> None:
    events = chrome(made.made_trace(2, 1, 2), named=False)
    path = tmp_path / "timeline.json"
    for broken, words in (
        (json.dumps(events)[:-3], "no Chrome timeline"),
        (json.dumps({"traceEvents": [{"ph": "X", "name": "ncclDevKernel", "ts": 1, "dur": 1}]}), r"other events \(ncclDevKernel\)"),
        (json.dumps([{**events[0], "args": {"step": 0}}]), "has no stage|args.seq_id"),
        (json.dumps([{**events[0], "args": {**events[0]["args"], "step": "x"}}]), "args.step 'x'; give a whole number"),
        (json.dumps([{**events[0], "dur": "long"}]), "dur is no number"),
    ):
        path.write_text(broken)
        assert is_trace(path)
        with pytest.raises(UserError, match=words) as caught:
            read_trace(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(gzip.compress(json.dumps(events).encode())[:60])
    with pytest.raises(UserError, match="cannot be unpacked"):
        read_trace(path)


def test_other_files_are_no_traces(tmp_path: Path) -> None:
    pq.write_table(pa.table({"iteration": [1, 2], "duration_s": [0.5, 0.5]}), tmp_path / "table.parquet")
    (tmp_path / "log.txt").write_text("iteration 1 took 0.5 s\n")
    (tmp_path / "series.json").write_text('{"iterations": [1, 2], "duration_s": [0.5, 0.5]}')
    (tmp_path / "records.json").write_text('[{"iteration": 1, "duration_s": 1.2}]')
    (tmp_path / "empty").write_bytes(b"")
    assert not any(is_trace(path) for path in [*tmp_path.iterdir(), tmp_path, tmp_path / "absent"])


def test_a_run_directory_gives_the_injected_worker(tmp_path: Path) -> None:
    """Rank 5 of the made-up run is tensor rank 1 of dp1/stage0."""
    trace = read_run_trace(synthetic_run.write_run(tmp_path / "run"))
    assert trace is not None
    found = analyse(trace)
    assert [(worker.dp, worker.stage) for worker in found.slow] == [(1, 0)]
    assert found.slow[0].slowdown == pytest.approx(synthetic_run.SLOWDOWN, rel=0.08) and found.ranks_of(1, 0) == (4, 5)
    assert found.what_if.launch_slowdown == pytest.approx(1.0, abs=0.01)
    healthy = read_run_trace(synthetic_run.write_run(tmp_path / "healthy", healthy=True))
    assert healthy is not None and analyse(healthy).slow == ()


def test_a_run_without_windows_has_no_trace(tmp_path: Path) -> None:
    assert read_run_trace(synthetic_run.write_run(tmp_path / "run", with_events=False)) is None
    head = synthetic_run.header()
    uneven = msgspec.structs.replace(head, layout=head.layout.with_split((20, 12)))  # replicas that differ have no graph in common
    RunWriter.create(tmp_path / "uneven", uneven).close()
    assert read_run_trace(tmp_path / "uneven") is None
