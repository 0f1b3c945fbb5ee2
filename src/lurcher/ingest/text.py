"""A log of any text: all formats look at it in one pass, and the one whose lines it holds is its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.finish import to_log
from lurcher.ingest.line_format import LineFormat
from lurcher.ingest.lines import blocks, clean, rank_prefix
from lurcher.ingest.log import Log, Progress
from lurcher.ingest.series import Series

MAX_RECORD_BYTES = 1 << 16
"""What a line has beyond this belongs to no record."""


class Gatherer:
    """Collects the records of one format: joins wrapped lines, remembers what stayed incomplete."""

    def __init__(self, path: str, form: LineFormat) -> None:
        self.form = form
        self.marker, self.begins = form.marker, form.start.search
        self.series = Series(path, form.names)
        self.num_incomplete = 0
        self.first_incomplete = 0
        self._pending = ""
        self._lines = 0
        self._line = 0
        self._rank: int | None = None

    @property
    def waiting(self) -> bool:
        """A record has begun and is not complete."""
        return self._lines > 0

    def begin(self, number: int, text: str, ended: bool) -> None:
        """A physical line on which a record begins."""
        self.end()
        self._line, self._rank = number, rank_prefix(text)
        self._pending, self._lines = "", 0
        self._add(text, ended)

    def go_on(self, text: str, ended: bool) -> None:
        """The physical line after one that left a record incomplete."""
        if self.form.block and "=" not in text:
            self.end()
        else:
            self._add(text, ended)

    def end(self) -> None:
        """No more lines for the record that is waiting: take it, or count it as incomplete."""
        if self._lines and not self._take():
            self.num_incomplete += 1
            self.first_incomplete = self.first_incomplete or self._line
        self._lines = 0

    def _add(self, text: str, ended: bool) -> None:
        packed = "".join(text.split())
        self._pending += packed + ("\n" if self.form.block and ended else "")
        self._lines += 1
        if self._lines >= self.form.max_lines:
            self.end()
        elif not self.form.block and self._take():
            self._lines = 0

    def _take(self) -> bool:
        record = self.form.parse(self._pending)
        if record is None:
            return False
        self.series.append(record[0], self._rank or 0, self._line, record[1])
        return True


def read_text(path: Path, forms: Sequence[LineFormat], progress: Progress | None = None) -> Log:
    """The Log of a text file in one of `forms`.

    Raises UserError where no format, or more than one, fits: several are right only where one program prints them all.
    """
    gatherers = [Gatherer(str(path), form) for form in forms]
    num_lines = 0
    waiting: list[Gatherer] = []
    for block in blocks(path, progress):
        for number, raw in enumerate(block.lines, block.first_line):
            if waiting or b"tep" in raw or b"iteration" in raw or b"timer.py" in raw:  # one of these is in every format's marker
                waiting = _offer(gatherers, waiting, number, raw, block.ended)
        num_lines = block.first_line + len(block.lines) - 1
    for gatherer in gatherers:
        gatherer.end()
    return _log_of(_choose(path, gatherers, num_lines), gatherers)


def _offer(gatherers: Sequence[Gatherer], waiting: list[Gatherer], number: int, raw: bytes, ended: bool) -> list[Gatherer]:
    """Show a physical line to every format whose record begins on it, and to those that wait for more; returns those that wait now."""
    line = clean(raw[:MAX_RECORD_BYTES])
    begun = [gatherer for gatherer in gatherers if gatherer.marker in line and gatherer.begins(line)]
    if not begun and not waiting:
        return waiting
    text = line.decode("utf-8", "replace")
    for gatherer in begun:
        gatherer.begin(number, text, ended)
    going_on = [gatherer for gatherer in waiting if gatherer not in begun]
    for gatherer in going_on:
        gatherer.go_on(text, ended)
    return [gatherer for gatherer in (*begun, *going_on) if gatherer.waiting]


def _choose(path: Path, gatherers: Sequence[Gatherer], num_lines: int) -> Gatherer:
    found = sorted((g for g in gatherers if len(g.series)), key=lambda g: g.series.lines.at(0))
    yields = {name for g in found for name in g.form.overlaps}
    left = [g for g in found if g.form.name not in yields]
    if len(left) == 1:
        return left[0]
    if left:
        where = " and ".join(f"line {g.series.lines.at(0)} is {g.form.name}" for g in left[:3])
        raise UserError(f"{path} mixes formats: {where}; split the file, or name the one to read with --format")
    begun = [g for g in gatherers if g.num_incomplete]
    if begun:
        first = min(begun, key=lambda g: g.first_incomplete)
        raise UserError(
            f"{path} line {first.first_incomplete}: looks like {first.form.name}, but neither this nor any other of {num_lines} lines carries a whole iteration time; "
            "give a file that is not cut off there"
        )
    names = ", ".join(g.form.name for g in gatherers)
    raise UserError(
        f"{path}: none of its {num_lines} lines carries an iteration time (looked for {names}); "
        "give a training log, or a CSV file whose first line is iteration,duration_s"
    )


def _log_of(chosen: Gatherer, gatherers: Sequence[Gatherer]) -> Log:
    series = chosen.series
    if chosen.num_incomplete:
        series.notes.append(
            f"{chosen.num_incomplete} lines begin like an iteration of {chosen.form.name} and carry no whole time (first: line {chosen.first_incomplete}): left out"
        )
    for other in gatherers:
        if other is not chosen and len(other.series):
            series.notes.append(
                f"{len(other.series)} lines of {other.form.name} were left for those of {chosen.form.name}; --format {other.form.name} reads them"
            )
    ranks_known = _ranks_are_real(series)
    if not ranks_known and series.rank.any():
        series = series.renumbered(series.names, ranks=False)
    columns = chosen.form.finish(series)
    return to_log(series, chosen.form.name, columns.values, columns.notes, ranks_known=ranks_known, relative=columns.relative)


def _ranks_are_real(series: Series) -> bool:
    """Prefixes tell ranks apart where the same iterations come under several of them, and not where another process prints after a restart."""
    index, rank = series.index, series.rank
    if len(np.unique(rank)) < 2:
        return False
    num_iterations = len(np.unique(index))
    num_pairs = len(np.unique(np.stack((index, rank)), axis=1).T)
    return num_pairs >= 1.5 * num_iterations
