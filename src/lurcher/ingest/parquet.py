"""Parquet with the columns of a CSV table, row group by row group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.csv_table import add_rows, table_log
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.names import meaning_of
from lurcher.ingest.series import Series

_OPERATIONS = frozenset({"optype", "op", "operation", "kernel", "ph"})
"""Column names that say that a row is an operation and not an iteration."""


def read_parquet(path: Path, progress: Progress | None = None) -> Log:
    """The Log of a Parquet file; raises UserError where it cannot be read or its columns are no iterations."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return _read(path, file, progress)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a readable parquet file ({reason}); it may be cut off: give a whole one") from error


def _read(path: Path, file: Any, progress: Progress | None) -> Log:
    names = list(file.schema_arrow.names)
    meaning = meaning_of(names)
    if meaning is None or _OPERATIONS & {name.lower() for name in names}:
        raise UserError(
            f"{path} has the columns {', '.join(names)[:200]!r}; a table of iterations has iteration and duration_s, one row an iteration and rank"
        )
    places = sorted({meaning.iteration, *(() if meaning.rank is None else (meaning.rank,)), *(place for place, _ in meaning.values.values())})
    series, done, size = Series(str(path), tuple(meaning.values), "row"), 0, path.stat().st_size
    total = max(1, file.metadata.num_rows)
    for batch in file.iter_batches(columns=[names[place] for place in places]):
        columns = {}
        for place in places:
            try:
                columns[place] = np.array(batch.column(batch.schema.names.index(names[place])).to_numpy(zero_copy_only=False), np.float64)
            except (TypeError, ValueError) as error:
                raise UserError(f"{path}: column {names[place]!r} does not hold numbers ({error}); give numbers") from error
        add_rows(series, meaning, np.arange(done + 1, done + batch.num_rows + 1), columns)
        done += batch.num_rows
        if progress is not None:
            progress(size * done // total, size)
    return table_log(series, "parquet", meaning)
