"""Tables with a line per worker and moment: `worker,time,...,batch_time_norm`, as in alibaba/clusterdata, cluster-trace-gpu-v2020/mini-batch-time.

The worker is the rank and the moment the iteration, in the input's own numbers where these are whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.finish import to_log
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.names import TIME_NAMES
from lurcher.ingest.quantity import MAX_ITERATION, MAX_RANK, quantity, split_unit
from lurcher.ingest.series import Series
from lurcher.ingest.table import Header, Table

_WORKERS = ("worker", "rank", "worker_id")


def is_worker_table(header: Header) -> bool:
    """The header has a worker, a moment, and a duration."""
    return _places(header) is not None


def read_workers(path: Path, header: Header, progress: Progress | None = None) -> Log:
    """The Log of a table of workers. Durations without a unit in their name are relative: only ratios mean something.

    Raises UserError where a line is no row of the table, or a rank lies outside what a record holds.
    """
    places = _places(header)
    if places is None:
        raise UserError(f"{path} line {header.line}: the header lacks worker, time or a duration; name the columns worker,time,duration_s")
    worker, _, duration = places
    table = Table(path, header, places, text=None if _numeric(path, header, worker) else worker)
    series = Series(str(path), ("moment", "duration_s"))
    _, unit = split_unit(header.names[duration])
    for lines, values in table.read(progress):
        if (bad := ~((values[0] >= 0) & (values[0] <= MAX_RANK) & (values[0] == np.floor(values[0])))).any():
            raise UserError(
                f"{path} line {int(lines[bad][0])}: worker is {values[0][bad][0]:g}; it must be a whole number from 0, or a name: correct the line"
            )
        if (bad := ~((values[1] >= 0) & (values[1] <= MAX_ITERATION))).any():
            raise UserError(
                f"{path} line {int(lines[bad][0])}: time is {values[1][bad][0]:g}; it must be a number of seconds from 0 on: correct the line"
            )
        series.extend(np.zeros(len(lines), np.int64), values[0].astype(np.int64), lines, (values[1], values[2] * (unit or 1.0)))
    series.notes.extend(table.notes)
    if table.labels:
        series.notes.append(
            "workers have names; they are numbered: "
            + ", ".join(f"{_printable(name)} is rank {rank}" for name, rank in list(table.labels.items())[:8])
        )
    if unit is None:
        series.notes.append(f"no unit in the name of {header.names[duration]}: durations are relative, only ratios mean something")
    numbered = series.renumbered(("duration_s",), _iterations(series.column("moment"), series))
    return to_log(numbered, "workers", {"duration_s": numbered.column("duration_s")}, ranks_known=True, relative=unit is None)


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _places(header: Header) -> tuple[int, int, int] | None:
    """Positions of worker, moment and duration."""
    names = [name.lower() for name in header.names]
    worker = next((names.index(name) for name in _WORKERS if name in names), None)
    if worker is None or "time" not in names:
        return None
    left = [place for place, name in enumerate(names) if place not in (worker, names.index("time")) and name]
    known = [place for place in left if TIME_NAMES.get(split_unit(names[place])[0]) == "duration_s"]
    likely = [place for place in left if "time" in names[place] or "duration" in names[place] or "latency" in names[place]]
    best = known or likely
    return (worker, names.index("time"), best[0]) if best else None


def _numeric(path: Path, header: Header, worker: int) -> bool:
    """Whether the first row's worker is a number."""
    with path.open("rb") as file:
        for _ in range(header.line):
            file.readline(1 << 16)
        cells = file.readline(1 << 16).decode("utf-8", "replace").strip().split(header.delimiter)
    return len(cells) <= worker or quantity(cells[worker].strip('" ')) is not None


def _iterations(moment: npt.NDArray[np.float64], series: Series) -> npt.NDArray[np.int64]:
    if (moment == np.floor(moment)).all():
        series.notes.append("iterations are numbered by the column time")
        return moment.astype(np.int64)
    distinct, index = np.unique(moment, return_inverse=True)
    series.notes.append(f"the column time is not whole: its {len(distinct)} moments are numbered from 0")
    return index.astype(np.int64)
