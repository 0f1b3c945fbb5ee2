"""Records of JSON, one an iteration (and rank): what JSON lines and JSON documents have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lurcher.errors import UserError
from lurcher.ingest.csv_table import table_log
from lurcher.ingest.log import Log
from lurcher.ingest.names import Meaning, meaning_of
from lurcher.ingest.quantity import MAX_ITERATION, MAX_RANK
from lurcher.ingest.series import Series

_LINGUA = ("speed/curr_iter_time", "speed/data_load_time")
"""Keys of Lingua's metrics.jsonl: the step on the device, and the loading of its batch before it; a duration is their sum."""
_NOTHING = ("NaN", "nan", "Infinity", "-Infinity", "null", "")


class Records:
    """Takes records as they come. The first one with an iteration and a duration says what the keys mean. `where`: "line" or "entry"."""

    def __init__(self, path: str, where: str) -> None:
        self.path, self.where = path, where
        self.num_taken = self.num_other = 0
        self.notes: list[str] = []
        self._names: list[str] = []
        self._meaning: Meaning | None = None
        self._series = Series(path, (), where)

    def take(self, number: int, record: Mapping[str, Any]) -> None:
        """One record; without an iteration and a duration it is counted and left out. UserError where a value is no number."""
        record = _with_sum(record)
        if self._meaning is None:
            self._names = list(record)
            self._meaning = meaning_of(self._names)
            self._series = Series(self.path, tuple(self._meaning.values) if self._meaning else (), self.where)
        if self._meaning is not None and self._append(self._meaning, number, record):
            self.num_taken += 1
        else:
            self.num_other += 1

    def log(self, format_name: str, unit_given: bool = False) -> Log | None:
        """The Log of all records; None where none was taken. `unit_given`: the unit stands elsewhere than in the names."""
        if self._meaning is None or not self.num_taken:
            return None
        if self.num_other:
            self.notes.append(f"{self.num_other} of {self.num_other + self.num_taken} records carry no iteration with its duration: left out")
        self._series.notes.extend(self.notes)
        return table_log(self._series, format_name, self._meaning._replace(unitless=()) if unit_given else self._meaning)

    def _append(self, meaning: Meaning, number: int, record: Mapping[str, Any]) -> bool:
        index = record.get(self._names[meaning.iteration])
        rank = 0 if meaning.rank is None else record.get(self._names[meaning.rank])
        if index is None or rank is None or self._names[meaning.values["duration_s"][0]] not in record:
            return False
        values = [self._number(number, self._names[place], record.get(self._names[place]), factor) for place, factor in meaning.values.values()]
        self._series.append(self._whole(number, "iteration", index, MAX_ITERATION), self._whole(number, "rank", rank, MAX_RANK), number, values)
        return True

    def _whole(self, number: int, name: str, value: Any, most: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            shown = repr(value)[:60]
            raise UserError(
                f"{self.path} {self.where} {number}: {name} is {shown}; it must be a whole number from 0 to {most:,}: correct or remove it"
            )
        return value

    def _number(self, number: int, name: str, value: Any, factor: float) -> float:
        if value is None or (isinstance(value, str) and value in _NOTHING):
            return math.nan
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{self.path} {self.where} {number}: {name} is {repr(value)[:60]}; it must be a number: correct or remove it")
        try:
            return float(value) * factor
        except OverflowError:  # a whole number beyond every float
            return math.nan


def _with_sum(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with Lingua's two times as duration and input."""
    step, loading = (record.get(key) for key in _LINGUA)
    if isinstance(step, (int, float)) and isinstance(loading, (int, float)):
        return {**record, "duration_s": step + loading, "input_s": loading}
    return record
