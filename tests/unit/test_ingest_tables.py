"""Tables, JSON, folders and run directories as they really are: right, or refused in one clear line with file, line and reason."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import header
from test_ingest import INDEX, STEADY, noted, refused
from test_ingest_formats import json_lines, megatron_ms, written

from lurcher.errors import UserError
from lurcher.ingest import read_log, read_logs
from lurcher.ingest.lines import blocks
from lurcher.ingest.quantity import quantity, split_unit
from lurcher.records import ITERATION
from lurcher.runlog import RunWriter

# numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7,412", 7412),
        ("2.6M", 2.6e6),
        ("1.05K", 1050),
        ("1.42E-05", 1.42e-5),
        (" 412 ", 412),
        ("1,234,567.5", 1234567.5),
        (".5", 0.5),
        ("3B", 3e9),
        ("-2", -2),
    ],
)
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "nan", "N/A", "null", "-", "inf", "-inf"])
def test_nothing_is_nan(text: str) -> None:
    value = quantity(text)
    assert value is not None and math.isnan(value)


@pytest.mark.parametrize("text", ["abc", "1,5", "1_000", "12ms", "1.2.3", "5361.6|", "0x10", "1,23,456"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert quantity(text) is None


def test_units_in_names() -> None:
    assert split_unit("duration_ms") == ("duration", 1e-3)
    assert split_unit("time_metrics/end_to_end(s)") == ("time_metrics/end_to_end", 1.0)
    assert split_unit("Elapsed (us)") == ("elapsed", 1e-6)
    assert split_unit("sum_len_sq") == ("sum_len_sq", None)
    assert split_unit("_s") == ("_s", None)


# tables


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["iteration,loss", "1,2"], ["line 1", "lacks", "duration_s"]),
        (["duration_s,loss", "1,2"], ["line 1", "lacks", "iteration"]),
        (["iteration,duration_s", "1,2", "2,abc"], ["line 3", "'abc'", "'duration_s'"]),
        (["iteration,duration_s", "1,2", "x,3"], ["line 3", "'x'", "'iteration'"]),
        (["iteration,duration_s", "1,2", "1.5,3"], ["line 3", "1.5", "whole number"]),
        (["iteration,duration_s", "1,2", "-1,3"], ["line 3", "-1", "whole number"]),
        (["iteration,duration_s", "1,2", "3,4,5"], ["line 3", "3 columns", "the header has 2"]),
        (["iteration,rank,duration_s", "1,9999999999,2"], ["line 2", "rank", "2,147,483,647"]),
        (["iteration,duration_s"], ["no rows"]),
        (["worker,time,batch_time", "0,-5,3"], ["line 2", "time is -5"]),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(lines: list[str], parts: list[str], tmp_path: Path) -> None:
    refused(written(tmp_path / "a", lines), *parts)


def test_comments_blank_lines_quotes_and_repeated_headers(tmp_path: Path) -> None:
    lines = ["# made by hand", "", '"iteration" , "duration_s"', "1, 1.5", "", "# more", "2,1.5K", "iteration,duration_s", '"3","2,500"', ""]
    log = read_log(written(tmp_path / "a", lines))
    assert log.rows["index"].tolist() == [1, 2, 3]
    assert log.rows["duration_s"].tolist() == [1.5, 1500.0, 2500.0]
    noted(log, "the header stands 1 more times")


def test_a_duration_without_unit_is_seconds(tmp_path: Path) -> None:
    noted(read_log(written(tmp_path / "a", ["step\tduration", "1\t2.5", "2\t2.5"])), "no unit in the name of duration: read as seconds")


def test_blocks_of_any_size_give_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "a", [f"line {i} " + "x" * (i % 37) for i in range(300)], end="\r\n")
    whole = path.read_bytes().split(b"\n")[:-1]
    for size in (1, 2, 7, 64, 1000, 1 << 20):
        found = [(block.first_line + i, line) for block in blocks(path, chunk_bytes=size) for i, line in enumerate(block.lines)]
        assert found == list(enumerate(whole, 1))


def test_arrow_and_the_slow_way_agree(tmp_path: Path) -> None:
    """A blank line makes the whole block go the slow way; numbers must not depend on it."""
    rng = np.random.default_rng(3)
    rows = [f"{i},{r},{rng.lognormal():.17g},{rng.integers(0, 2**31)}" for i in range(500) for r in range(3)]
    quick = read_log(written(tmp_path / "a", ["iteration,rank,duration_s,num_tokens", *rows]))
    slow = read_log(written(tmp_path / "b", ["iteration,rank,duration_s,num_tokens", "", *rows]))
    assert quick.rows.tobytes() == slow.rows.tobytes()


def test_workers_with_names_and_fractions(tmp_path: Path) -> None:
    lines = ["worker,time,batch_time_ms", *(f"w{w},{t / 2},{100 + w}" for t in range(20) for w in (3, 1))]
    log = read_log(written(tmp_path / "a", lines))
    assert log.format == "workers" and log.num_ranks == 2 and log.rows["index"].max() == 19
    assert sorted(set(log.rows["duration_s"])) == pytest.approx([0.101, 0.103])
    noted(log, "w3 is rank 0, w1 is rank 1", "numbered from 0")


def test_a_long_line_does_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + "\n".join(megatron_ms(INDEX, STEADY)).encode() + b"\n")
    assert read_log(path).rows["index"].tolist() == INDEX
    assert max(len(line) for block in blocks(path) for line in block.lines) <= 3 << 20


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = written(tmp_path / "a", megatron_ms(list(range(1, 9000)), [2.0] * 8999))
    told: list[tuple[int, int]] = []
    read_log(path, progress=lambda done, total: told.append((done, total)))
    assert len(told) > 2 and told == sorted(told)
    assert {total for _, total in told} == {path.stat().st_size} and told[-1][0] == path.stat().st_size


def test_memory_is_that_of_the_numbers(tmp_path: Path) -> None:
    """Sixteen megabytes of text hold 4,000 iterations; beside the rows nothing as large as the text may be held."""
    import tracemalloc

    path = tmp_path / "a"
    with path.open("w") as file:
        for i in range(1, 4001):
            file.write(f" iteration {i}/ 99999 | elapsed time per iteration (ms): {1000 + i % 7}.0 | {'lm loss: 1.818812E+00 | ' * 180}\n")
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.rows) == 4000
    assert peak < log.rows.nbytes + 4000 * 100 + (5 << 20)


# JSON


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"a": 1}', ["without a series"]),
        ('{"iterations": [1, 2], "elapsed_s": [1.0]}', ["without a series"]),
        ('{"values": [1.0, 2.0], "iterations": [1], "interval": 1}', ["without a series"]),
        ('{"iterations": [1, 2.5], "elapsed_s": [1.0, 2.0]}', ["entry 2", "2.5"]),
        ('{"iterations": [1, 2], "elapsed_s": [1.0, "x"]}', ["entry 2", "'x'"]),
        ('{"iterations": [1, 2], "elapsed', ["is no JSON"]),
        ('{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n', ["none of 2 JSON records"]),
        ('{"step": 1, "duration_s": 2}\n{"step": "x", "duration_s": 2}\n', ["line 2", "'x'"]),
        ('{"step": 1, "duration_s": 2}\n{"step": 2, "duration_s": "x"}\n', ["line 2", "'x'"]),
        ('[{"step": 1, "duration_s": 2}, {"step": -2, "duration_s": 1}]', ["entry 2", "-2"]),
    ],
)
def test_wrong_json_is_refused(text: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    refused(path, *parts)


def test_several_series_in_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(
        '{"x": {"interval": 5, "values": [1.0, null, 3.0], "first_iteration": 5}, "y": {"interval": 1, "values": [1.0, 2.0], "iterations": [3, 9]}, "z": 1}'
    )
    refused(path, "holds 2 series", "read_logs")
    x, y = read_logs([path])
    assert (x.path, y.path) == (f"{path}#x", f"{path}#y")
    assert x.rows["index"].tolist() == [5, 10, 15] and math.isnan(x.rows["duration_s"][1])
    assert y.rows["index"].tolist() == [3, 9]


def test_records_of_another_kind_between_json_lines(tmp_path: Path) -> None:
    lines = [text for line in json_lines(INDEX, STEADY) for text in ('{"eval": 1.0}', line)]
    log = read_log(written(tmp_path / "a", lines))
    assert log.rows["index"].tolist() == INDEX and "input_s" in log.columns
    noted(log, "30 of 60 records carry no iteration")


def test_ranks_and_units_in_json(tmp_path: Path) -> None:
    path = tmp_path / "a"
    records = [{"iteration": i, "rank": r, "duration_ms": 1000 * i + r} for i in (1, 2) for r in (0, 1)]
    path.write_text(json.dumps(records))
    log = read_log(path)
    assert log.num_ranks == 2 and log.rows["duration_s"].tolist() == pytest.approx([1.0, 1.001, 2.0, 2.001])
    path.write_text(json.dumps({"steps": [1, 1, 2, 2], "rank": [0, 1, 0, 1], "durations_s": [1.0, 2.0, 3.0, 4.0]}))
    assert read_log(path).rows["rank"].tolist() == [0, 1, 0, 1]
    path.write_text(json.dumps({"interval": 10, "unit": "ms", "values": [500, 750.0], "first_iteration": 10}))
    log = read_log(path)
    assert log.rows["duration_s"].tolist() == [0.5, 0.75] and log.rows["index"].tolist() == [10, 20] and log.notes == ()


def test_json_lines_may_be_long(tmp_path: Path) -> None:
    lines = [json.dumps({"step": i, "duration_s": 1.5, "histogram": [0.5] * 50_000}) for i in range(1, 20)]
    assert read_log(written(tmp_path / "a", lines)).rows["index"].tolist() == list(range(1, 20))


def test_a_worker_with_an_iteration_is_a_rank(tmp_path: Path) -> None:
    log = read_log(written(tmp_path / "a", ["worker,iteration,duration_s", "4,1,2.5", "2,1,3.5"]))
    assert log.format == "csv" and log.rows["rank"].tolist() == [2, 4] and not log.relative


# folders and run directories


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = np.zeros(40, ITERATION)
    rows["index"], rows["rank"], rows["duration_s"] = np.repeat(np.arange(10), 4), np.tile(np.arange(4), 10), 1.5
    for name in ("busy_s", "wait_s", "transfer_tp_s", "transfer_dp_s", "transfer_pp_s", "transfer_world_s", "input_s", "host_s", "expected_s"):
        rows[name] = np.nan
    rows["busy_s"], rows["transfer_dp_s"] = 1.0, 0.25
    writer = RunWriter.create(tmp_path / "runs" / "one", header())
    writer.iterations(rows)
    writer.close()
    return tmp_path / "runs" / "one"


def test_a_run_directory(run: Path) -> None:
    log = read_log(run)
    assert log.format == "lurcher" and log.num_ranks == 4 and len(log.rows) == 40
    assert log.columns == {"duration_s", "rank", "num_tokens", "sum_len_sq", "busy_s", "transfer_s"}
    assert read_log(run, format="lurcher").rows.tobytes() == log.rows.tobytes()


def test_a_folder_is_all_that_can_be_read_in_it(run: Path) -> None:
    folder = run.parent
    (folder / "sub").mkdir()
    written(folder / "sub" / "log.txt", megatron_ms(INDEX, STEADY))
    written(folder / "b.csv", ["iteration,duration_s", "1,2"])
    written(folder / "README", ["nothing here"])
    written(folder / ".hidden", ["iteration,duration_s", "1,2"])
    logs = read_logs([folder])
    assert [log.path.removeprefix(f"{folder}/") for log in logs] == ["b.csv", "one", "sub/log.txt"]
    noted(logs[0], "README")
    assert [log.path for log in read_logs([folder / "b.csv", run])] == [str(folder / "b.csv"), str(run)]
    with pytest.raises(UserError, match="README"):
        read_logs([folder / "README"])
