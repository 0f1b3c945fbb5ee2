"""JSON documents with one or more series of iterations: lists side by side, values at an interval, or one record an iteration.

Shapes: {"iterations": [...], "elapsed_s": [...]}; {"values": [...], "interval": 5, "first_iteration": 5}, one or many under names;
[{"iteration": 1, "duration_s": 1.2}, ...]; and NVIDIA/Megatron-LM's golden values, {"iteration-time": {"values": {"1": 6.38, ...}}}, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lurcher.errors import UserError
from lurcher.ingest.json_records import Records
from lurcher.ingest.lines import BOM
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.names import meaning_of
from lurcher.ingest.quantity import UNITS_S

MAX_BYTES = 128 << 20
"""A JSON document is decoded whole, so that a larger one is refused: JSON lines and CSV are read as a stream."""

_PLURALS = {"iterations": "iteration", "steps": "step", "ranks": "rank", "durations_s": "duration_s", "durations_ms": "duration_ms"}

Rows = Sequence[Mapping[str, Any]]


class NotJson(UserError):
    """What begins like JSON is none: perhaps a log that begins with the job's configuration."""


def read_json(path: Path, progress: Progress | None = None) -> tuple[Log, ...]:
    """The Logs of a JSON document, one a series, as `FILE#NAME` where there are several.

    Raises UserError where it holds none, and NotJson where it is no JSON or too large.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise NotJson(f"{path} is a JSON document of {size:,} bytes, and {MAX_BYTES:,} is the most; give it as JSON lines or CSV")
    try:
        document = msgspec.json.decode(path.read_bytes().removeprefix(BOM))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotJson(f"{path} is no JSON ({error}); it may be cut off: give the whole file") from error
    if progress is not None:
        progress(size, size)
    found = [(" ".join(name.split()), rows, given) for name, rows, given in _series_in(document) if rows]
    logs = [_log(f"{path}#{name}" if name and len(found) > 1 else str(path), rows, given) for name, rows, given in found]
    if not logs:
        raise UserError(
            f'{path} is JSON without a series of iterations; give {{"iterations": [...], "duration_s": [...]}} or a list of records with both keys'
        )
    return tuple(logs)


def _log(path: str, rows: Rows, unit_given: bool) -> Log:
    records = Records(path, "entry")
    for number, row in enumerate(rows, 1):
        records.take(number, row)
    log = records.log("json", unit_given)
    if log is None:
        raise UserError(f"{path}: none of its {len(rows)} entries has an iteration and a duration; give both")
    return log


def _series_in(document: Any) -> Iterator[tuple[str, Rows, bool]]:
    """Name, rows, and whether a unit is given beside them, for every series in the document itself or under one of its names."""
    if isinstance(document, dict) and isinstance(document.get("iteration-time"), dict):
        yield "", _golden(document["iteration-time"]), True
        return
    if rows := _rows(document):
        yield "", rows, _unit(document) is not None
    elif isinstance(document, dict):
        for name, value in document.items():
            yield name, _rows(value), _unit(value) is not None


def _golden(series: Mapping[str, Any]) -> Rows:
    values = series.get("values", series)
    if isinstance(values, list):
        values = {str(series.get("start_step", 1) + i * series.get("step_interval", 1)): value for i, value in enumerate(values)}
    return [{"iteration": int(key), "duration_s": value} for key, value in values.items() if key.isdecimal()] if isinstance(values, dict) else []


def _rows(value: Any) -> Rows:
    """The value as records with an iteration and a duration; empty where it is no series."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return value if any(meaning_of(list(item)) for item in value[:100]) else []
    if not isinstance(value, dict):
        return []
    lists: dict[str, list[Any]] = {_PLURALS.get(str(name), str(name)): item for name, item in value.items() if isinstance(item, list) and item}
    values = lists.pop("values", None)
    if values is not None:
        unit = _unit(value)
        lists[f"duration_{unit}" if unit else "duration"] = values
        first, interval = value.get("first_iteration", 1), value.get("interval", 0)
        if "iteration" not in lists and isinstance(first, int) and isinstance(interval, int) and interval > 0:
            lists["iteration"] = [first + i * interval for i in range(len(values))]
    meaning = meaning_of(list(lists))
    if meaning is None:
        return []
    size = len(lists[list(lists)[meaning.iteration]])
    columns = {name: item for name, item in lists.items() if len(item) == size}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] if meaning_of(list(columns)) else []


def _unit(value: Any) -> str | None:
    """The unit that a key `unit` names (`"unit": "seconds per iteration"`), None without one."""
    unit = value.get("unit") if isinstance(value, dict) else None
    word = unit.split()[0].lower() if isinstance(unit, str) and unit.strip() else ""
    return word if word in UNITS_S else None
