"""The run directory: everything a report needs, written while the job runs and readable at any moment, elsewhere.

    run.toml                  the header: job, layout, places, versions, schema
    iterations/NNNNN.parquet  ITERATION rows, in parts
    events/IIIIII-LABEL.parquet   EVENT windows kept around a suspicion
    decisions.jsonl           one Decision a line
    state.json, verdict.json, log.txt   present while the job runs; the diagnosis; lines for people

One process writes. Whole files appear by temporary name and rename; a line that the writer's death tore is left out.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_type_hints

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.records import EVENT, ITERATION, Decision, Place

RUN_SCHEMA: Final = "lurcher/run/1"
PART_ITERATIONS: Final = 10
"""Iterations buffered before a part is written: what a sudden death of the writer can lose."""
PART_ROWS: Final = 500_000
"""A part is written earlier once it holds so many rows, which bounds memory at 100,000 ranks."""

EventLabel = Literal["healthy", "slow", "mitigated", "recovered", "suspect"]


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What was fixed when the run began. `injected` holds the faults put in on purpose, as text; `emulated` says that device time was emulated."""

    schema: str = RUN_SCHEMA
    lurcher_version: str
    versions: dict[str, str]
    job: dict[str, Any]
    layout: Layout
    places: tuple[Place, ...]
    emulated: bool
    injected: tuple[str, ...] = ()
    started_unix_s: float
    command: str


class RunWriter:
    """Writes one run directory; the only writer of it. Use `create`, and `close` in the end (`contextlib.closing` fits)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[np.ndarray] = []
        self._num_rows = 0
        self._indices: set[int] = set()
        self._num_parts = 0

    @classmethod
    def create(cls, path: Path, header: RunHeader) -> RunWriter:
        """Make the directory with its header. An empty directory is fine; a used one is refused with UserError."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"run directory {path} is already used; a run needs a new or empty one: name another (--run-dir, or dir under [run])")
        for folder in (path, path / "iterations", path / "events"):
            folder.mkdir(parents=True, exist_ok=True)
        _replace(path / "run.toml", _to_toml(header))
        return cls(path)

    def iterations(self, rows: np.ndarray) -> None:
        """Keep ITERATION rows; they reach the disk in parts of about PART_ITERATIONS iterations, and at `close`."""
        if rows.dtype != ITERATION:
            raise ValueError(f"iterations are rows of records.ITERATION, not {rows.dtype}")
        self._rows.append(rows.copy())
        self._num_rows += len(rows)
        self._indices.update(np.unique(rows["index"]).tolist())
        if len(self._indices) >= PART_ITERATIONS or self._num_rows >= PART_ROWS:
            self._flush()

    def events(self, iteration: int, label: EventLabel, events: np.ndarray) -> None:
        """Keep a window of EVENT rows of one iteration, all ranks together; a second call for the same pair replaces the first."""
        if events.dtype != EVENT or label not in get_args(EventLabel):
            raise ValueError(f"events are rows of records.EVENT under one of {get_args(EventLabel)}, not {events.dtype} under {label!r}")
        _replace(self.path / "events" / f"{iteration:06d}-{label}.parquet", _to_parquet(events))

    def go_back(self, iteration: int) -> None:
        """Forget the rows and events of `iteration` and all after it: they are computed again, perhaps by other ranks. What was decided stays.

        Parts on the disk are replaced whole, by emptier ones, so that whoever reads meanwhile finds every file that it has listed.
        """
        self._flush()
        for part in sorted((self.path / "iterations").glob("*.parquet"), reverse=True):
            rows = _from_parquet(part, ITERATION)
            if not len(rows):
                continue
            if (rows["index"] < iteration).all():
                break
            _replace(part, _to_parquet(rows[rows["index"] < iteration]))
        for window in (self.path / "events").glob("*.parquet"):
            if int(window.name.split("-")[0]) >= iteration:
                window.unlink()

    def decide(self, decision: Decision) -> None:
        """Append a decision; it is on disk when this returns."""
        _append(self.path / "decisions.jsonl", msgspec.json.encode(decision, enc_hook=_plain) + b"\n")

    def state(self, mapping: Mapping[str, Any]) -> None:
        """Replace state.json, which exists while the run is alive."""
        _replace(self.path / "state.json", msgspec.json.encode(mapping, enc_hook=_plain))

    def verdict(self, verdict: object) -> None:
        """Replace verdict.json by a struct or mapping of schema lurcher/verdict/1."""
        _replace(self.path / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict, enc_hook=_plain)))

    def log(self, line: str) -> None:
        """Append one line for people to log.txt."""
        _append(self.path / "log.txt", (line.rstrip("\n") + "\n").encode("utf-8", "replace"))

    def close(self) -> None:
        """Write what is buffered and remove state.json: the run ended cleanly. Can be called again."""
        self._flush()
        (self.path / "state.json").unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._rows:
            return
        _replace(self.path / "iterations" / f"{self._num_parts:05d}.parquet", _to_parquet(np.concatenate(self._rows)))
        self._num_parts += 1
        self._rows, self._num_rows, self._indices = [], 0, set()


class RunReader:
    """Reads a run directory, finished or still growing; every call reads the files anew. `header` is read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header = _read_header(self.path)

    def iterations(self) -> np.ndarray:
        """All ITERATION rows by (index, rank). Of an iteration that was run again after a recovery, the later rows hold."""
        parts = [_from_parquet(part, ITERATION) for part in sorted((self.path / "iterations").glob("*.parquet"))]
        if not parts:
            return np.empty(0, ITERATION)
        rows = np.concatenate(parts)
        rows = rows[np.lexsort((rows["rank"], rows["index"]))]  # stable: of equal keys the one written last stays last
        last = np.ones(len(rows), bool)
        last[:-1] = (rows["index"][1:] != rows["index"][:-1]) | (rows["rank"][1:] != rows["rank"][:-1])
        return rows[last]

    def events(self) -> list[tuple[int, str, np.ndarray]]:
        """The kept windows as (iteration, label, EVENT rows), in the order of their iterations."""
        found = []
        for part in sorted((self.path / "events").glob("*.parquet")):
            if named := re.fullmatch(r"(\d+)-(\w+)\.parquet", part.name):
                found.append((int(named[1]), named[2], _from_parquet(part, EVENT)))
        return sorted(found, key=lambda window: window[:2])

    def decisions(self) -> list[Decision]:
        """Every decision in its order. A torn last line is left out; a kind that this version does not know reads as a note."""
        path = self.path / "decisions.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(_decision(msgspec.json.decode(line)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a torn line may end inside a character
                if number < len(lines):
                    raise UserError(f"{path} line {number} is not a decision ({error}); remove the line to read the rest") from error
        return found

    def verdict(self) -> dict[str, Any] | None:
        """verdict.json, or None where the run ended before one was made."""
        return self._json("verdict.json")

    def state(self) -> dict[str, Any] | None:
        """state.json, or None once the run has ended cleanly."""
        return self._json("state.json")

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a JSON object ({error}); remove it, then make it again from the run directory") from error


def _decision(line: Any) -> Decision:
    if isinstance(line, dict) and line.get("kind") not in get_args(get_type_hints(Decision)["kind"]):
        line = {**line, "kind": "note"}
    return msgspec.convert(line, Decision)


def _read_header(path: Path) -> RunHeader:
    source = path / "run.toml"
    if not source.is_file():
        raise UserError(f"{path} is not a run directory: it has no run.toml; name the directory that `lurcher train` or `lurcher demo` wrote")
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
        schema = str(table.get("schema", ""))
        if not re.fullmatch(re.escape(RUN_SCHEMA) + r"(\.\d+)*", schema):
            writer = table.get("lurcher_version", "unknown")
            raise UserError(f"{source} has schema {schema!r}; this version reads {RUN_SCHEMA}: use the lurcher that wrote it (version {writer})")
        return msgspec.convert(table, RunHeader)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{source} cannot be read ({error}); it should be as lurcher wrote it: restore it from a copy") from error


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:  # opened for every line: lines are rare, and nothing is left open when the writer dies
        file.write(line)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _to_toml(header: RunHeader) -> bytes:
    import tomli_w  # lazily: reading a run needs only the standard library's tomllib

    return tomli_w.dumps(_without_nulls(msgspec.to_builtins(header))).encode("utf-8", "replace")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return str(value)


def _to_parquet(rows: np.ndarray) -> bytes:
    import pyarrow as pa  # lazily: 0.2 s that `lurcher --help` must not pay
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _from_parquet(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file ({error}); remove it to read the rest of the run") from error
    rows = np.empty(table.num_rows, dtype)
    for name in dtype.names or ():
        unknown = np.nan if dtype[name].kind == "f" else 0  # a column that an older version did not write
        rows[name] = table.column(name).to_numpy() if name in table.column_names else unknown
    return rows
