"""Every format, there and back: random series are printed as the programs print them, and read again within the printed precision."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lurcher.ingest import FORMATS, Log, read_log
from lurcher.records import ITERATION

START = datetime(2026, 1, 5, 8, 0, 0)  # logs name no zone


class Printed(NamedTuple):
    """How a format prints a series: lines, and the largest relative and absolute error of a duration (seconds) that its digits leave."""

    lines: Callable[[list[int], list[float]], list[str]]
    relative: float
    absolute: float


def stamps(index: list[int], durations: list[float]) -> list[datetime]:
    """When the line of each iteration is printed: the stamps of a job in which nothing but iterations takes time."""
    now, before, out = START, index[0] - (index[1] - index[0] if len(index) > 1 else 1), []
    for i, duration in zip(index, durations, strict=True):
        now += timedelta(seconds=duration * (i - before))
        before = i
        out.append(now)
    return out


def human(value: float) -> str:
    """Three significant digits with a suffix."""
    for scale, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= scale * 0.9995:
            return f"{float(f'{value / scale:.3g}'):g}{suffix}"
    return f"{float(f'{value:.3g}'):g}"


def megatron_ms(index: list[int], durations: list[float]) -> list[str]:
    return [
        f" [2026-04-06 03:02:12.000123] iteration {i:8d}/{9999999:8d} | consumed samples: {i * 128:12d} | elapsed time per iteration (ms): {d * 1e3:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): 243.6 | learning rate: 1.420000E-05 | global batch size: {128:5d} | lm loss: 1.818812E+00 | loss scale: 1.0 | grad norm: 1.300 |"
        for i, d in zip(index, durations, strict=True)
    ]


def megatron_s(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"[default7]: iteration {i:8d}/  115311 | consumed samples: {i * 2048:12d} | consumed tokens: {i * 4194304:12d} | elapsed time per iteration (s): {d:.2f} | "
        "learning rate: 5.969E-05 | global batch size:  2048 | lm loss: 2.46E+00 | samples per second: 19.463 | TFLOPs: 149.02 |"
        for i, d in zip(index, durations, strict=True)
    ]


def torchtitan(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"[titan] {t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03d} - root - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss:  8.12345  \x1b[38;2;180;60;0mgrad_norm:  1.2345  "
        f"\x1b[38;2;54;234;195mmemory: 41.20GiB(51.5%)  \x1b[34mtps: {round(8192000 / d):,}  \x1b[36mtflops: 389.12  \x1b[35mmfu: 39.35%\x1b[39m"
        for t, i, d in zip(stamps(index, durations), index, durations, strict=True)
    ]


def deepspeed(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"[{t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03d}] [INFO] [timer.py:260:stop] epoch=0/micro_step={4 * i}/global_step={i}, RunningAvgSamplesPerSec=25.02, "
        f"CurrSamplesPerSec={64 / d!r}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
        for t, i, d in zip(stamps(index, durations), index, durations, strict=True)
    ]


def nanotron(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"\x1b[2;3m01/08 11:00:00 [INFO|DP=0|PP=0|TP=0|node-0]\x1b[0m: iteration: {i} / 99999 | consumed_tokens: {human(i * 262144)} | time_per_iteration_ms: {human(d * 1e3)} | "
        f"tokens_per_sec: {human(262144 / d)} | tokens_per_sec_per_gpu: 40K | global_batch_size: 262K | lm_loss: 9.36 | lr: 3e-06 | eta: 0:06:48"
        for i, d in zip(index, durations, strict=True)
    ]


def nanochat(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"step {i:05d}/99999 (0.20%) | loss: 3.123456 | lrm: 1.00 | dt: {d * 1e3:.2f}ms | tok/sec: {int(524288 / d):,} | mfu: 45.12 | total time: 0.00m"
        for i, d in zip(index, durations, strict=True)
    ]


def modded_nanogpt(index: list[int], durations: list[float]) -> list[str]:
    clock, before, out = 0.0, index[0] - 1, []
    for i, d in zip(index, durations, strict=True):
        clock += d * (i - before)
        before = i
        out.append(f"step:{i}/99999 train_loss:3.1142 train_time:{clock * 1e3:.0f}ms step_avg:{clock * 1e3 / i:.2f}ms")
        if i % 7 == 0:
            out.append(f"step:{i}/99999 val_loss:3.2 train_time:{clock * 1e3:.0f}ms step_avg:{clock * 1e3 / i:.2f}ms")
    return out


def lingua(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"0: INFO    26-01-05 08:00:00.000000 - 0:10:00 - step: {i}  acc: 0  loss:  2.1234  grad: 1.00e+00  flops: 4.00e+14  wps: 1.20e+04  iter: {0.99 * d:7.4f}  data: {0.01 * d:5.4f}  lr: 3.00e-04  mem: 80%  pow: 600.0 W"
        for i, d in zip(index, durations, strict=True)
    ]


def olmo(index: list[int], durations: list[float]) -> list[str]:
    return [
        f"2026-01-05 08:00:00.000 host:0 olmo_core.train:500 INFO [step={i}/99999,epoch=1]\n    optim/LR=0.0003\n    throughput/device/BPS={1 / d:.6g}\n"
        f"    throughput/device/BPS (actual avg)=0.5\n    throughput/device/data loading (%)=1.5\n    train/CE loss=2.5"
        for i, d in zip(index, durations, strict=True)
    ]


def csv_seconds(index: list[int], durations: list[float]) -> list[str]:
    return ["iteration,duration_s", *(f"{i},{d!r}" for i, d in zip(index, durations, strict=True))]


def csv_milliseconds(index: list[int], durations: list[float]) -> list[str]:
    return ["step;loss;iteration_time_ms", *(f"{i};1.5;{d * 1e3:.3f}" for i, d in zip(index, durations, strict=True))]


def workers(index: list[int], durations: list[float]) -> list[str]:
    return [",worker,gpu,time,duration_s", *(f"{n},0,25,{i},{d!r}" for n, (i, d) in enumerate(zip(index, durations, strict=True)))]


def json_lists(index: list[int], durations: list[float]) -> list[str]:
    return json.dumps({"source": "made", "iterations": index, "elapsed_s": durations, "other": [1]}, indent=1).split("\n")


def json_records(index: list[int], durations: list[float]) -> list[str]:
    return [json.dumps([{"step": i, "duration_ms": d * 1e3} for i, d in zip(index, durations, strict=True)])]


def golden(index: list[int], durations: list[float]) -> list[str]:
    values = {str(i): d for i, d in zip(index, durations, strict=True)}
    steps = {"start_step": index[0], "end_step": index[-1], "step_interval": 1}
    return [json.dumps({"lm loss": {**steps, "values": dict.fromkeys(values, 9.1)}, "iteration-time": {**steps, "values": values}})]


def json_lines(index: list[int], durations: list[float]) -> list[str]:
    return [
        json.dumps({"global_step": i, "loss/out": 2.1, "speed/curr_iter_time": 0.75 * d, "speed/data_load_time": 0.25 * d})
        for i, d in zip(index, durations, strict=True)
    ]


FORMS: dict[str, tuple[str, Printed]] = {
    "Megatron-LM": ("megatron", Printed(megatron_ms, 0, 0.51e-4)),
    "Megatron-DeepSpeed": ("megatron", Printed(megatron_s, 0, 0.51e-2)),
    "torchtitan": ("torchtitan", Printed(torchtitan, 0.02, 0)),
    "DeepSpeed": ("deepspeed", Printed(deepspeed, 0.02, 0)),
    "nanotron": ("nanotron", Printed(nanotron, 0.0051, 1e-9)),
    "nanochat": ("nanochat", Printed(nanochat, 0, 0.51e-5)),
    "modded-nanogpt": ("modded-nanogpt", Printed(modded_nanogpt, 0, 1.01e-3)),
    "Lingua": ("lingua", Printed(lingua, 0, 1.01e-4)),
    "OLMo-core": ("olmo", Printed(olmo, 1e-5, 0)),
    "CSV": ("csv", Printed(csv_seconds, 1e-12, 0)),
    "CSV in ms": ("csv", Printed(csv_milliseconds, 0, 0.51e-6)),
    "workers": ("workers", Printed(workers, 1e-12, 0)),
    "JSON lists": ("json", Printed(json_lists, 1e-12, 0)),
    "JSON records": ("json", Printed(json_records, 1e-12, 0)),
    "golden values": ("json", Printed(golden, 1e-12, 0)),
    "JSON lines": ("jsonl", Printed(json_lines, 1e-12, 0)),
}
LINES = [name for name, (form, _) in FORMS.items() if form not in ("csv", "json", "jsonl", "workers", "olmo")]
FROM_STAMPS = ("torchtitan", "DeepSpeed")


@st.composite
def series(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Iterations from anywhere at a steady stride, and durations around a level, with a slow stretch."""
    size, first, stride = draw(st.integers(12, 40)), draw(st.integers(1, 5000)), draw(st.sampled_from([1, 1, 2, 10, 100]))
    level, seed = draw(st.floats(0.05, 100.0)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    durations = level * (1 + 0.005 * rng.standard_normal(size))
    slow = draw(st.integers(0, size))
    durations[slow : slow + draw(st.integers(1, size))] *= draw(st.sampled_from([1.05, 1.3, 4.0]))
    return list(range(first, first + stride * size, stride)), durations.tolist()


def written(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes((end.join("\n".join(lines).split("\n")) + end).encode())
    return path


def check(log: Log, index: list[int], durations: list[float], printed: Printed) -> None:
    assert log.rows.dtype == ITERATION and not log.rows.flags.writeable
    assert log.rows["index"].tolist() == index
    got, want = log.rows["duration_s"], np.array(durations)
    known = np.isfinite(got)
    assert known[1:].all()  # the first line of a running clock has nothing before it
    assert np.abs(got - want)[known].max() <= (printed.relative * want + printed.absolute).max()
    error = np.abs(got - want)[known] - (printed.relative * want + printed.absolute)[known]
    assert error.max() <= 0
    assert log.stride == (index[1] - index[0])
    assert (log.rows["rank"] == 0).all() and log.num_ranks == 1


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=series())
def test_what_is_written_comes_back(name: str, data: tuple[list[int], list[float]], tmp_path: Path) -> None:
    form, printed = FORMS[name]
    index, durations = data
    path = written(tmp_path / "file.bin", printed.lines(index, durations))
    log = read_log(path)
    assert log.format == form and form in FORMATS
    check(log, index, durations, printed)
    assert read_log(path, format=form).rows.tobytes() == log.rows.tobytes()


@pytest.mark.parametrize("name", LINES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=series(), width=st.integers(72, 140), soft=st.booleans())
def test_wrapped_lines_read_as_whole_ones(name: str, data: tuple[list[int], list[float]], width: int, soft: bool, tmp_path: Path) -> None:
    """A terminal cuts at a column, a mail program at a space; either way not a digit is lost, and none is made up."""
    import re
    import textwrap

    _, printed = FORMS[name]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in "\n".join(printed.lines(*data)).split("\n")]
    if soft:
        wrapped = [part for line in lines for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)]
    else:
        wrapped = [line[i : i + width] for line in lines for i in range(0, len(line), width)]
    whole = read_log(written(tmp_path / "whole", lines))
    again = read_log(written(tmp_path / "wrapped", wrapped))
    assert again.format == whole.format
    assert again.rows.tobytes() == whole.rows.tobytes()


@pytest.mark.parametrize("name", FORMS)
def test_ends_of_lines_and_the_mark_of_windows(name: str, tmp_path: Path) -> None:
    form, printed = FORMS[name]
    index, durations = list(range(5, 45)), [1.0 + 0.01 * (i % 3) for i in range(40)]
    plain = read_log(written(tmp_path / "a", printed.lines(index, durations)))
    windows = written(tmp_path / "b", printed.lines(index, durations), end="\r\n")
    windows.write_bytes(b"\xef\xbb\xbf" + windows.read_bytes())
    log = read_log(windows)
    assert log.format == form
    assert log.rows.tobytes() == plain.rows.tobytes()


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name][0] not in ("json",)])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=series(), share=st.floats(0.4, 0.999))
def test_a_file_cut_off_anywhere_gives_its_beginning(name: str, data: tuple[list[int], list[float]], share: float, tmp_path: Path) -> None:
    """Every row read is a row of the whole file: a number cut in two is never taken for a smaller number."""
    from lurcher.errors import UserError

    _, printed = FORMS[name]
    whole = "\n".join(printed.lines(*data)).encode() + b"\n"
    path = tmp_path / "cut"
    path.write_bytes(whole[: int(share * len(whole))])
    try:
        log = read_log(path)
    except UserError as error:  # cut before the first whole line
        assert str(path) in str(error) and "\n" not in str(error)
        return
    num = len(log.rows)
    assert log.rows["index"].tolist() == data[0][:num]
    if name not in FROM_STAMPS:  # there the scale is a median over what is left
        want = np.array(data[1][:num])
        got = log.rows["duration_s"]
        known = np.isfinite(got)
        limit = printed.relative * want + printed.absolute
        if name == "CSV":  # shortest digits: the last line may end in a longer number cut to a shorter one, by no more than what is left of it
            limit[-1] = 0.1
        assert (np.abs(got - want)[known] <= limit[known]).all()


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "table"
    pq.write_table(
        pa.table(
            {
                "iteration": np.repeat(np.arange(7, 27), 4),
                "rank": np.tile(np.arange(4), 20).astype(np.int32),
                "duration_ms": np.linspace(100, 200, 80, dtype=np.float32),
                "num_tokens": np.arange(80),
                "note": ["x"] * 80,
            }
        ),
        path,
        row_group_size=16,
    )
    told: list[tuple[int, int]] = []
    log = read_log(path, progress=lambda done, total: told.append((done, total)))
    assert log.format == "parquet" and log.num_ranks == 4
    assert log.columns == {"duration_s", "rank", "num_tokens"}
    assert log.rows["rank"].tolist() == [0, 1, 2, 3] * 20
    np.testing.assert_allclose(log.rows["duration_s"], np.linspace(0.1, 0.2, 80), rtol=1e-6)
    assert log.rows["num_tokens"].tolist() == list(range(80))
    assert told[-1][0] == told[-1][1] == path.stat().st_size


def test_all_columns_of_a_table(tmp_path: Path) -> None:
    names = "iteration,rank,duration_s,num_tokens,sum_len_sq,busy_s,wait_s,transfer_s,input_s,host_s"
    lines = [names, *(f"{i},{r},1.5,{100 + i},{i * i},0.5,0.25,0.125,0.0625,0.03125" for i in range(1, 5) for r in range(3))]
    log = read_log(written(tmp_path / "t", lines))
    assert log.columns == set(names.split(",")) - {"iteration"}
    assert log.num_ranks == 3 and len(log.rows) == 12
    row = log.rows[4]
    assert (row["index"], row["rank"], row["num_tokens"], row["sum_len_sq"]) == (2, 1, 102, 4)
    assert (row["busy_s"], row["wait_s"], row["transfer_world_s"], row["input_s"], row["host_s"]) == (0.5, 0.25, 0.125, 0.0625, 0.03125)
    assert math.isnan(row["transfer_tp_s"]) and math.isnan(row["expected_s"])


def test_what_the_formats_carry_beside_the_time(tmp_path: Path) -> None:
    index, durations = list(range(10, 40)), [2.0] * 30
    tokens = read_log(written(tmp_path / "m", megatron_s(index, durations)))
    assert tokens.columns == {"duration_s", "num_tokens"} and (tokens.rows["num_tokens"] == 4194304).all()
    assert read_log(written(tmp_path / "l", lingua(index, durations))).rows["input_s"] == pytest.approx(0.02)
    assert read_log(written(tmp_path / "o", olmo(index, durations))).rows["input_s"] == pytest.approx(0.03)
