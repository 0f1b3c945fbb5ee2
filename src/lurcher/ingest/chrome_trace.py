"""Chrome timelines (the JSON of chrome://tracing and Perfetto) of a pipeline's operations, plain or gzipped.

An event is an operation if its name is one of `op_trace.OP_NAMES`; its `args` hold step, seq_id, mb_id and model_chunk. Replica and stage are
in `args` too (`dp_rank`, `stage`, as lurcher writes them), or in the names of process and thread ("DP rank [0]", "PP rank 1, TP rank 0, ...",
as ByteDance-Seed/StragglerAnalysis writes them).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import OP_NAMES, Column, OpTrace, checked

GZIP_MAGIC = b"\x1f\x8b"
HEAD_BYTES = 1 << 16
MOST_BYTES = 1 << 30
"""A timeline is decoded whole; one that unpacks to more is refused."""
_DP_NAME = re.compile(r"DP rank \[?(\d+)")
_STAGE_NAME = re.compile(r"PP rank (\d+)")


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    pid: int | str | float = 0
    tid: int | str | float = 0
    ts: float | str = 0.0
    dur: float | str = 0.0
    args: dict[str, Any] | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's name


def is_chrome_trace(path: Path) -> bool:
    """Whether a file begins like a timeline; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as opened:
            head = opened.read(HEAD_BYTES).lstrip()
    except (OSError, EOFError, zlib.error):
        return False
    if not head.startswith((b"{", b"[")):
        return False
    return b'"traceEvents"' in head or (b'"ph"' in head and any(f'"{name}"'.encode() in head for name in OP_NAMES))


def read_chrome_trace(path: Path) -> OpTrace:
    """The trace of a timeline; raises UserError, in one line, where it holds no operations of a pipeline."""
    events = _events(path)
    ops = [event for event in events if event.ph == "X" and event.name in OP_NAMES]
    if not ops:
        seen = sorted({event.name for event in events if event.ph == "X"})[:3]
        raise UserError(f"{path} is a Chrome timeline of other events ({', '.join(seen)[:80]}); an operation is named {', '.join(OP_NAMES[:4])}, ...")
    dp_of, stage_of = _names(events)
    places = [_place(path, event, dp_of, stage_of) for event in ops]
    columns = {key: _column(path, ops, key) for key in ("step", "seq_id", "mb_id", "model_chunk")}
    dp, stage, rank = (np.array(column, np.int64) for column in zip(*places, strict=True))
    op = np.array([OP_NAMES.index(event.name) for event in ops], np.uint8)
    chunk = columns["model_chunk"]
    computes = op <= 1
    start_s, duration_s = (_seconds(path, ops, key) for key in ("ts", "dur"))
    return checked(
        OpTrace(
            path=str(path),
            format="chrome timeline",
            dp=dp,
            stage=stage,
            rank=rank,
            step=columns["step"],
            op=op,
            start_s=start_s,
            duration_s=duration_s,
            seq=columns["seq_id"],
            chunk=chunk,
            microbatch=columns["mb_id"],
            model_chunk=np.where(computes, chunk * (int(stage.max()) + 1) + stage, -1),
        )
    )


def _events(path: Path) -> list[_Event]:
    try:
        data = path.read_bytes()
        if data.startswith(GZIP_MAGIC):
            with gzip.open(path) as file:
                data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}); it may be cut off: give the whole file") from error
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} unpacks to more than {MOST_BYTES >> 30} GiB; give a timeline of fewer steps")
    try:
        decoded = msgspec.json.decode(data, type=list[_Event] | _Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no Chrome timeline ({error}); it may be cut off: give the whole file") from error
    return decoded.traceEvents if isinstance(decoded, _Document) else decoded


def _names(events: Sequence[_Event]) -> tuple[dict[Any, int], dict[tuple[Any, Any], int]]:
    """Replica of a process and stage of a thread, from the names that the timeline gives them."""
    dp_of: dict[Any, int] = {}
    stage_of: dict[tuple[Any, Any], int] = {}
    for event in events:
        name = (event.args or {}).get("name")
        if event.ph != "M" or not isinstance(name, str):
            continue
        if event.name == "process_name" and (found := _DP_NAME.search(name)):
            dp_of[event.pid] = int(found[1])
        elif event.name == "thread_name" and (found := _STAGE_NAME.search(name)):
            stage_of[event.pid, event.tid] = int(found[1])
    return dp_of, stage_of


def _place(path: Path, event: _Event, dp_of: dict[Any, int], stage_of: dict[tuple[Any, Any], int]) -> tuple[int, int, int]:
    """Replica, stage and first rank of an operation; the rank is -1 where the timeline does not say it."""
    args = event.args or {}
    dp = args.get("dp_rank", dp_of.get(event.pid, event.pid))
    stage = args.get("stage", stage_of.get((event.pid, event.tid)))
    rank = args.get("rank", -1)
    if not (isinstance(dp, int) and isinstance(stage, int) and isinstance(rank, int)):
        raise UserError(
            f"{path}: {event.name} of process {event.pid}, thread {event.tid} has no stage; name threads 'PP rank N, ...' or give args.stage"
        )
    return dp, stage, rank


def _column(path: Path, ops: Sequence[_Event], key: str) -> Column:
    values = [(event.args or {}).get(key) for event in ops]
    optional = key in ("mb_id", "model_chunk")
    numbers = [-1 if value is None and optional else value for value in values]
    bad = next((place for place, value in enumerate(numbers) if not isinstance(value, int)), None)
    if bad is not None:
        raise UserError(f"{path}: {ops[bad].name} number {bad + 1} has args.{key} {numbers[bad]!r}; give a whole number")
    return np.array(numbers, np.int64)


def _seconds(path: Path, ops: Sequence[_Event], key: str) -> Column:
    """From microseconds, which some writers give as text."""
    try:
        return np.array([float(getattr(event, key)) for event in ops]) / 1e6
    except ValueError as error:
        raise UserError(f"{path}: {key} is no number ({error}); give microseconds") from error
