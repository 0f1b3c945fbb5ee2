"""The part of `lurcher analyze` for logs and tables: what it reads, prints and writes, and the bar that large inputs are waited for with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from lurcher.analyze.fleet import fleet, fleet_text, run_line
from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.values import Verdict
from lurcher.cli.verdicts import event_lines, exit_code_of, print_json
from lurcher.ingest.log import Log
from lurcher.ingest.read import read_logs

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

BAR_FROM_BYTES = 20_000_000
"""Smaller inputs are read before a bar could be seen."""


def analyze_logs(
    files: tuple[Path, ...], format_name: str | None, baseline: tuple[Path, ...], report_path: Path | None, *, as_json: bool, exit_code: bool
) -> int:
    """The command for logs and tables; returns its exit code."""
    with _progress(files) as bar:
        logs = read_logs(files, format_name, bar.read if bar is not None else None)
        siblings = read_logs(baseline, format_name)
        verdicts = [_with_replay(analyze_log(log, siblings), log) for log in (bar.looking(logs) if bar is not None else logs)]
    lines = [run_line(verdict, _total_s(log)) for verdict, log in zip(verdicts, logs, strict=True)]
    facts = fleet(verdicts, lines)
    if report_path is not None:
        from lurcher.cli.log_report import write_fleet_report, write_log_report

        if len(logs) == 1:
            write_log_report(logs[0], verdicts[0], report_path)
        else:
            write_fleet_report(logs, verdicts, lines, facts, report_path)
    if as_json:
        print_json(verdicts)
    elif len(verdicts) == 1:
        for line in (verdicts[0].summary, *event_lines(verdicts[0]), *(f"  note  {note}" for note in logs[0].notes)):
            click.echo(line)
    else:
        for line in fleet_text(lines, facts):
            click.echo(line)
    if report_path is not None:
        click.echo(f"  report  {report_path}", err=as_json)
    return exit_code_of(verdicts, exit_code)


def _with_replay(verdict: Verdict, log: Log) -> Verdict:
    """A run directory's verdict has the replay of its kept windows as well."""
    if log.format != "lurcher":
        return verdict
    from lurcher.analyze.trace_run import with_replay

    return with_replay(verdict, Path(log.path))


def _total_s(log: Log) -> float:
    """Seconds of the whole run: the job's time an iteration, times the iterations that a row stands for. Without a unit a row is a moment."""
    if log.relative:
        return float(len(np.unique(log.rows["index"])) * log.stride)
    first = log.rows["rank"] == log.rows["rank"].min()
    return float(np.nansum(log.rows["duration_s"][first])) * log.stride


@dataclass(frozen=True)
class _Bar:
    """What a large input is waited for with: the bytes of the file that is being read, then the logs that were looked at."""

    bar: Progress
    task: TaskID

    def read(self, done: int, total: int) -> None:
        """So many bytes of the present file were read."""
        self.bar.update(self.task, completed=done, total=total)

    def looking(self, logs: Sequence[Log]) -> Iterator[Log]:
        """The logs, counted."""
        for number, log in enumerate(logs, 1):
            said = "looking for slow periods" if len(logs) == 1 else f"looking for slow periods, {number} of {len(logs)}"
            self.bar.update(self.task, description=said, total=None)
            yield log


@contextmanager
def _progress(files: tuple[Path, ...]) -> Iterator[_Bar | None]:
    """A bar on stderr for large inputs on a terminal, else nothing."""
    inside = (part for path in files for part in ((path,) if path.is_file() else path.rglob("*")))
    size = sum(part.stat().st_size for part in inside if part.is_file())
    if size < BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task("reading", total=None))
