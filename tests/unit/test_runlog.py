"""The run directory: what is written comes back, while it grows, after a death, and from another version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import header

from lurcher.errors import UserError
from lurcher.records import EVENT, ITERATION, ChangePoint, Component, Decision, Suspicion
from lurcher.runlog import PART_ITERATIONS, RunReader, RunWriter


def rows_of(index: int, num_ranks: int = 8, duration_s: float = 1.0) -> np.ndarray:
    rows = np.zeros(num_ranks, ITERATION)
    rows["index"], rows["rank"], rows["duration_s"], rows["expected_s"] = index, range(num_ranks), duration_s, np.nan
    return rows


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return RunWriter.create(tmp_path / "deep" / "run", header())


def test_header_comes_back(writer: RunWriter) -> None:
    assert RunReader(writer.path).header == header()


def test_nulls_in_the_job_are_dropped(tmp_path: Path) -> None:
    import msgspec

    head = msgspec.structs.replace(header(), job={"a": None, "b": {"c": [1, None, 2.5], "d": None, "e": ""}}, command="bad byte \udc80")
    RunWriter.create(tmp_path / "run", head)
    assert RunReader(tmp_path / "run").header.job == {"b": {"c": [1, 2.5], "e": ""}}


def test_used_directory_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunWriter.create(tmp_path / "empty", header()).close()
    with pytest.raises(UserError, match=r"empty is already used.*name another"):
        RunWriter.create(tmp_path / "empty", header())
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="already used"):
        RunWriter.create(tmp_path / "file", header())


def test_iterations_reach_the_disk_in_whole_parts(writer: RunWriter) -> None:
    for k in range(2 * PART_ITERATIONS + 3):
        writer.iterations(rows_of(k))
    assert [p.name for p in sorted((writer.path / "iterations").iterdir())] == ["00000.parquet", "00001.parquet"]
    assert len(RunReader(writer.path).iterations()) == 8 * 2 * PART_ITERATIONS
    writer.close()
    writer.close()
    read = RunReader(writer.path).iterations()
    assert read.dtype == ITERATION
    assert read["index"].tolist() == np.repeat(np.arange(2 * PART_ITERATIONS + 3), 8).tolist()
    assert np.isnan(read["expected_s"]).all()
    assert not list(writer.path.rglob("*.tmp"))


def test_a_buffer_handed_in_may_be_reused(writer: RunWriter) -> None:
    buffer = rows_of(0)
    writer.iterations(buffer)
    buffer["index"] = 99
    writer.close()
    assert set(RunReader(writer.path).iterations()["index"]) == {0}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.floats(0.1, 9)), max_size=60))
def test_rows_come_back_sorted_and_the_last_of_equal_keys_holds(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[tuple[int, int, float]]
) -> None:
    writer = RunWriter.create(tmp_path_factory.mktemp("run"), header())
    for index, rank, duration_s in given_rows:
        row = np.zeros(1, ITERATION)
        row["index"], row["rank"], row["duration_s"] = index, rank, duration_s
        writer.iterations(row)
    writer.close()
    expected = {(index, rank): duration_s for index, rank, duration_s in given_rows}
    read = RunReader(writer.path).iterations()
    assert [(int(r["index"]), int(r["rank"]), float(r["duration_s"])) for r in read] == [(*key, expected[key]) for key in sorted(expected)]


def test_events_keep_label_and_rows(writer: RunWriter) -> None:
    events = np.zeros(5, EVENT)
    events["rank"], events["start_ns"], events["seq"] = range(5), 2**60 + np.arange(5), -1
    writer.events(30, "slow", events)
    writer.events(4, "healthy", events[:2])
    found = RunReader(writer.path).events()
    assert [(k, label, len(rows)) for k, label, rows in found] == [(4, "healthy", 2), (30, "slow", 5)]
    assert (found[1][2] == events).all()


def test_rows_of_another_kind_are_a_programming_error(writer: RunWriter) -> None:
    with pytest.raises(ValueError, match="ITERATION"):
        writer.iterations(np.zeros(2, EVENT))
    with pytest.raises(ValueError, match="healthy"):
        writer.events(1, "broken", np.zeros(2, EVENT))  # type: ignore[arg-type]


def test_decisions_are_on_disk_at_once_with_their_values(writer: RunWriter) -> None:
    point = ChangePoint(25, 31, 1.0, 1.5, 1.5, "slower", "confirmed", "default", float(np.float64(3)))
    writer.decide(Decision(31, np.float64(12.5), "change_point", "reason with\nnewline and “quotes”", point))  # type: ignore[arg-type]
    writer.decide(
        Decision(32, 13.0, "suspicion", "", {"ranks": np.arange(3), "worst": np.int64(5), "of": Suspicion(Component.of_rank(5), "compute", 1.8, 0.9)})
    )
    first, second = RunReader(writer.path).decisions()
    assert first.reason == "reason with\nnewline and “quotes”"
    assert (first.time_s, first.value["slowdown"]) == (12.5, 1.5)
    assert second.value["ranks"] == [0, 1, 2]
    assert second.value["of"]["component"]["ranks"] == [5]


def test_a_torn_last_line_is_left_out_and_a_torn_middle_is_named(writer: RunWriter) -> None:
    for k in range(3):
        writer.decide(Decision(k, float(k), "note", "grün"))
    path = writer.path / "decisions.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1])):  # wherever the writer died, inside a character too
        path.write_bytes(whole[: -1 - cut])
        assert [d.iteration for d in RunReader(writer.path).decisions()] == [0, 1]
    path.write_bytes(b"{broken\n" + whole)
    with pytest.raises(UserError, match="line 1"):
        RunReader(writer.path).decisions()


def test_kinds_and_fields_of_a_newer_version_are_tolerated(writer: RunWriter) -> None:
    (writer.path / "decisions.jsonl").write_text('{"iteration":1,"time_s":2,"kind":"prophecy","reason":"why","shade":"blue"}\n')
    assert RunReader(writer.path).decisions() == [Decision(1, 2.0, "note", "why")]
    toml = writer.path / "run.toml"
    toml.write_text('colour = "blue"\n' + toml.read_text().replace("lurcher/run/1", "lurcher/run/1.4"))
    assert RunReader(writer.path).header.layout == header().layout


def test_another_major_schema_is_refused(writer: RunWriter) -> None:
    toml = writer.path / "run.toml"
    for other in ("lurcher/run/2", "lurcher/run/10", "lurcher/verdict/1"):
        toml.write_text(toml.read_text().replace(RunReader(writer.path).header.schema, other))
        with pytest.raises(UserError, match=rf"{other}.*reads lurcher/run/1"):
            RunReader(writer.path)
        toml.write_text(toml.read_text().replace(other, "lurcher/run/1"))


def test_what_is_no_run_directory_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        RunReader(tmp_path)
    with pytest.raises(UserError, match="is not a run directory"):
        RunReader(tmp_path / "nowhere")
    (tmp_path / "run.toml").write_text("schema = [")
    with pytest.raises(UserError, match="cannot be read"):
        RunReader(tmp_path)


def test_columns_that_an_older_version_lacked_read_as_unknown(writer: RunWriter) -> None:
    writer.iterations(rows_of(0))
    writer.close()
    part = writer.path / "iterations" / "00000.parquet"
    table = pq.ParquetFile(part).read()
    pq.write_table(table.drop_columns(["host_s", "num_tokens"]).append_column("novelty", table.column("rank")), part)
    read = RunReader(writer.path).iterations()
    assert np.isnan(read["host_s"]).all()
    assert (read["num_tokens"] == 0).all()


def test_state_is_there_while_the_run_lives(writer: RunWriter) -> None:
    writer.state({"pid": 7, "generation": 0, "ranks": {"0": 11}})
    assert RunReader(writer.path).state() == {"pid": 7, "generation": 0, "ranks": {"0": 11}}
    writer.log("hello\n")
    writer.close()
    assert RunReader(writer.path).state() is None
    assert (writer.path / "log.txt").read_text() == "hello\n"


def test_verdict(writer: RunWriter) -> None:
    assert RunReader(writer.path).verdict() is None
    writer.verdict({"schema": "lurcher/verdict/1", "what_if": None})
    assert RunReader(writer.path).verdict() == {"schema": "lurcher/verdict/1", "what_if": None}
    (writer.path / "verdict.json").write_text("[1]")
    with pytest.raises(UserError, match=r"verdict\.json is not a JSON object"):
        RunReader(writer.path).verdict()


def test_a_run_that_recorded_nothing_reads_as_empty(writer: RunWriter) -> None:
    run = RunReader(writer.path)
    assert (len(run.iterations()), run.events(), run.decisions()) == (0, [], [])
