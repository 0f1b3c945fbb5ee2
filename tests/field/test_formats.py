"""Readers on files of others and on lines in the exact format of each program: the levels read must show what the answers say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lurcher.errors import UserError
from lurcher.ingest import read_log, read_logs


def truth(shared_data: Path, name: str) -> dict[str, Any]:
    return json.loads((shared_data / "truth.json").read_text(encoding="utf-8"))["files"][name]


@pytest.mark.parametrize("name", ["torchtitan.log", "torchtitan_no_color.log", "deepspeed.log", "nanotron.log", "modded_nanogpt.log"])
def test_levels_before_and_after_the_onset(name: str, shared_data: Path) -> None:
    answer = truth(shared_data, f"formats/{name}")
    log = read_log(shared_data / "formats" / name)
    rows = log.rows
    assert len(rows) == answer["lines"] and log.stride == answer["interval"] and log.num_ranks == 1
    assert log.format == name.removesuffix(".log").removesuffix("_no_color").replace("_", "-")
    event = answer["events"][0]
    before = rows["duration_s"][rows["index"] < event["onset_iteration"]]
    after = rows["duration_s"][rows["index"] >= event["onset_iteration"]]
    assert np.isfinite(rows["duration_s"]).all()
    assert np.median(before) == pytest.approx(answer["healthy_level_s"], rel=0.005)
    assert np.median(after) / np.median(before) == pytest.approx(event["slowdown"], rel=0.01)
    assert before.max() < after.min()  # the change lies between two lines, and no line is off
    assert rows["index"][rows["duration_s"] > 1.15 * np.median(before)][0] == event["onset_iteration"]


def test_colours_change_nothing(shared_data: Path) -> None:
    with_colours, without = (read_log(shared_data / "formats" / name) for name in ("torchtitan.log", "torchtitan_no_color.log"))
    assert with_colours.rows.tobytes() == without.rows.tobytes()


def test_megatron_log_and_table_agree(shared_data: Path) -> None:
    """The same series twice: as a table with five decimals and as log lines with a tenth of a millisecond."""
    table, log = (read_log(shared_data / "megatron_ci" / f"gpt3_15b_h100.{end}") for end in ("csv", "log"))
    assert (table.format, log.format) == ("csv", "megatron")
    assert table.rows["index"].tolist() == log.rows["index"].tolist()
    assert np.abs(table.rows["duration_s"] - log.rows["duration_s"]).max() <= 0.51e-4
    assert table.stride == log.stride == 100


@pytest.mark.parametrize("folder", ["megatron_ci", "nanogpt"])
def test_tables_by_another_reader(folder: str, shared_data: Path) -> None:
    for path in sorted((shared_data / folder).glob("*.csv")):
        with path.open() as file:
            expected = [(int(row["iteration"]), float(row["duration_s"])) for row in csv.DictReader(file)]
        rows = read_log(path).rows
        assert list(zip(rows["index"].tolist(), rows["duration_s"].tolist(), strict=True)) == expected


def test_healthy_sample(shared_data: Path) -> None:
    path = shared_data / "megatron_ci" / "healthy_sample.json"
    document = json.loads(path.read_text())
    logs = read_logs([path])
    assert [log.path for log in logs] == [f"{path}#{name}" for name in document]
    for log, series in zip(logs, document.values(), strict=True):
        assert log.rows["duration_s"].tolist() == series["values"]
        first, interval = series["first_iteration"], series["interval"]
        assert log.rows["index"].tolist() == series.get("iterations", [first + i * interval for i in range(len(series["values"]))])


def test_bloom(shared_data: Path) -> None:
    rows = read_log(shared_data / "bloom" / "bloom176b_2022-04-28_slow_gpu.json").rows
    assert rows["index"].tolist() == [42780, 42781, 42782, 42783, 42784]
    assert rows["duration_s"][3:].mean() / rows["duration_s"][:2].mean() == pytest.approx(1.052, abs=0.002)


@pytest.mark.parametrize("job", [1, 2])
def test_workers(job: int, shared_data: Path) -> None:
    path = shared_data / "alibaba_pai" / f"job_{job}_norm.csv"
    with path.open() as file:
        expected = {(int(row["time"]), int(row["worker"])): float(row["batch_time_norm"]) for row in csv.DictReader(file)}
    log = read_log(path)
    assert log.format == "workers" and log.num_ranks == 10 and "rank" in log.columns and log.relative
    got = {(int(row["index"]), int(row["rank"])): float(row["duration_s"]) for row in log.rows}
    assert got == expected
    if job == 1:
        event = truth(shared_data, f"alibaba_pai/{path.name}")["events"][0]
        mine = log.rows[log.rows["rank"] == event["worker"]]
        slow = (mine["index"] >= event["onset_time_s"]) & (mine["index"] <= event["end_time_s"])
        assert np.median(mine["duration_s"][slow]) / np.median(mine["duration_s"][~slow]) == pytest.approx(event["slowdown"], abs=0.05)


def test_what_is_no_series_is_refused(shared_data: Path) -> None:
    for name in (
        "straggler_analysis/trace-ST.parquet",
        "straggler_analysis/timeline-ST.json.gz",
        "straggler_analysis/result-ST.json",
        "truth.json",
        "README.md",
    ):
        with pytest.raises(UserError) as caught:
            read_log(shared_data / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)
    for dump in (shared_data / "flight_recorder").iterdir():
        with pytest.raises(UserError, match="binary"):
            read_log(dump)


def test_a_whole_folder(shared_data: Path) -> None:
    logs = read_logs([shared_data / "nanogpt", shared_data / "formats"])
    assert len(logs) == 6 + 5
    assert any("LICENSE" in note for note in logs[0].notes)
