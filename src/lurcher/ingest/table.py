"""Delimited tables of any size: the header, and below it the wanted columns as numbers, a chunk of the file at a time.

A chunk is converted at once by Arrow; where that fails, line by line, which knows more notations and can say which line is wrong.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.lines import BOM, Chunk, chunks
from lurcher.ingest.log import Progress
from lurcher.ingest.quantity import quantity

DELIMITERS = (",", ";", "\t")
_BOM = b"\xef\xbb\xbf"
_NULLS = ["", "nan", "NaN", "NAN", "null", "None", "NA", "N/A", "n/a", "-"]


@dataclass(frozen=True)
class Header:
    """The names of the columns, what stands between them, and the number of their line."""

    names: tuple[str, ...]
    delimiter: str
    line: int


def headers_of(head: bytes) -> tuple[Header, ...]:
    """The first line of `head` that is neither empty nor a comment (`#`), read as a header once for each delimiter that it holds."""
    for number, raw in enumerate(head.removeprefix(BOM).split(b"\n"), 1):
        text = raw.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        readings = (Header(tuple(cells_of(text, d)), d, number) for d in DELIMITERS)
        return tuple(header for header in readings if len(header.names) > 1)
    return ()


def cells_of(text: str, delimiter: str) -> list[str]:
    """The cells of one line; the line itself where its quotes or ends are broken, so that it is seen to be no row."""
    try:
        return [cell.strip(' "') for cell in next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:
        return [text]


@dataclass
class Table:
    """Reads the columns at `wanted` below a header. `text`, if given, is the position of a column of names, which become numbers (`labels`)."""

    path: Path
    header: Header
    wanted: tuple[int, ...]
    text: int | None = None
    labels: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_headers: int = 0
    decimals: int = 0

    def read(self, progress: Progress | None = None) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Line numbers and values, one row a wanted column, NaN for what is missing. UserError for a line that is no row of the table."""
        for chunk in chunks(self.path, progress):
            rows = self._below_the_header(chunk)
            if rows is None:
                continue
            found = self._at_once(rows) if rows.ended and self.text is None else None
            lines, values = found if found is not None else self._by_line(rows)
            values[~np.isfinite(values)] = np.nan
            yield lines, values
        if self.num_headers:
            self.notes.append(f"the header stands {self.num_headers} more times among the rows, as in files put one behind the other: left out")

    def _below_the_header(self, chunk: Chunk) -> Chunk | None:
        above = self.header.line - chunk.first_line + 1
        if above <= 0:
            return chunk
        if above >= chunk.num_lines:
            return None
        return chunk._replace(first_line=self.header.line + 1, data=chunk.data.split(b"\n", above)[above])

    def _at_once(self, chunk: Chunk) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None:
        """The chunk by Arrow; None where it holds anything but plain rows of numbers."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        if chunk.data.startswith(_BOM):  # Arrow would skip it at the start of any chunk; in the middle of a file it is no number
            return None
        names = [str(i) for i in range(len(self.header.names))]
        wanted = [str(i) for i in self.wanted]
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(chunk.data),
                read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False),
                parse_options=arrow_csv.ParseOptions(delimiter=self.header.delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.float64()), include_columns=wanted, null_values=_NULLS
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            return None
        if table.num_rows != chunk.num_lines:  # empty lines: their numbers would be lost
            return None
        self.decimals = _decimals(chunk.data[chunk.data.rfind(b"\n") + 1 :])
        values = np.stack([np.array(table.column(name).to_numpy(zero_copy_only=False), np.float64) for name in wanted])
        return np.arange(chunk.first_line, chunk.first_line + table.num_rows), values

    def _by_line(self, chunk: Chunk) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The same, line by line."""
        lines: list[int] = []
        rows: list[list[float]] = []
        for number, raw in enumerate(chunk.data.split(b"\n"), chunk.first_line):
            row = self._row(number, raw, chunk.ended)
            if row is not None:
                lines.append(number)
                rows.append(row)
        return np.array(lines, np.int64), np.array(rows, np.float64).reshape(len(rows), len(self.wanted)).T.copy()

    def _row(self, number: int, raw: bytes, ended: bool) -> list[float] | None:
        text = raw.decode("utf-8", "replace").strip("\r\0 ")
        if not text.strip() or text.startswith("#"):
            return None
        cells = cells_of(text, self.header.delimiter)
        if tuple(cells) == self.header.names:
            self.num_headers += 1
            return None
        values = [self._value(cells, place) for place in self.wanted] if len(cells) == len(self.header.names) else [None]
        if not ended and (None in values or _decimals(raw) < self.decimals):
            self.notes.append(f"line {number}, the last one, is cut off: left out")
            return None
        self.decimals = _decimals(raw)
        if None not in values:
            return [value for value in values if value is not None]
        if len(cells) != len(self.header.names):
            what = f"has {len(cells)} columns, the header has {len(self.header.names)}"
        else:
            place = self.wanted[values.index(None)]
            what = f"has {cells[place]!r} under {self.header.names[place]!r}, which is no number"
        raise UserError(f"{self.path} line {number} {what}; correct or remove the line, or give each format a file of its own")

    def _value(self, cells: Sequence[str], place: int) -> float | None:
        if place != self.text:
            return quantity(cells[place])
        return float(self.labels.setdefault(cells[place], len(self.labels)))


def _decimals(raw: bytes) -> int:
    """Digits behind the last point of a line: a last line without an end that has fewer than the one before may be cut inside a number."""
    last = raw.rstrip().rpartition(b".")[2]
    return len(last) if last.isdigit() and b"." in raw else 0
