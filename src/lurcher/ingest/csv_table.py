"""CSV with a header: `iteration,duration_s` and, where known, `rank,num_tokens,sum_len_sq,busy_s,wait_s,transfer_s,input_s,host_s`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.finish import to_log
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.names import Meaning, meaning_of
from lurcher.ingest.quantity import MAX_ITERATION, MAX_RANK
from lurcher.ingest.series import Series
from lurcher.ingest.table import Header, Table


def read_csv(path: Path, header: Header, progress: Progress | None = None) -> Log:
    """The Log of a CSV file. A time's unit is read from the end of its name (`_s`, `_ms`, `_us`, `_ns`), `duration` alone is taken as seconds.

    Raises UserError where the header lacks an iteration or a duration, and for a line that is no row.
    """
    meaning = meaning_of(header.names)
    if meaning is None:
        raise UserError(
            f"{path} line {header.line}: the header {','.join(header.names)[:200]!r} lacks an iteration or its duration; "
            "name the columns iteration and duration_s (or duration_ms)"
        )
    places = (meaning.iteration, *(() if meaning.rank is None else (meaning.rank,)), *(place for place, _ in meaning.values.values()))
    wanted = tuple(sorted(set(places)))
    table = Table(path, header, wanted)
    series = Series(str(path), tuple(meaning.values))
    for lines, values in table.read(progress):
        add_rows(series, meaning, lines, dict(zip(wanted, values, strict=True)))
    series.notes.extend(table.notes)
    return table_log(series, "csv", meaning)


def add_rows(series: Series, meaning: Meaning, lines: npt.NDArray[np.int64], columns: dict[int, npt.NDArray[np.float64]]) -> None:
    """Append rows given as columns by position; UserError for an iteration or rank that is no whole number."""
    index = _whole(series, "iteration", lines, columns[meaning.iteration], MAX_ITERATION)
    rank = None if meaning.rank is None else _whole(series, "rank", lines, columns[meaning.rank], MAX_RANK)
    series.extend(index, rank, lines, [columns[place] if factor == 1.0 else columns[place] * factor for place, factor in meaning.values.values()])


def table_log(series: Series, format_name: str, meaning: Meaning) -> Log:
    """The Log of rows read under a meaning."""
    notes = []
    if meaning.unitless:
        notes.append(f"no unit in the name of {', '.join(meaning.unitless)}: read as seconds")
    if not len(series):
        raise UserError(f"{series.path} has a header and no rows; give at least one iteration")
    columns = {name: series.column(name) for name in meaning.values}
    return to_log(series, format_name, columns, tuple(notes), ranks_known=meaning.rank is not None)


def _whole(series: Series, name: str, lines: npt.NDArray[np.int64], values: npt.NDArray[np.float64], most: int) -> npt.NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        bad = ~((values >= 0) & (values <= most) & (values == np.floor(values)))
    if bad.any():
        raise UserError(
            f"{series.path} {series.where} {int(lines[bad][0])}: {name} is {values[bad][0]:g}; it must be a whole number from 0 to {most:,}: correct or remove the {series.where}"
        )
    return values.astype(np.int64)
