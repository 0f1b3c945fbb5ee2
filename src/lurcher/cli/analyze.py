"""`lurcher analyze`: the diagnosis of logs and traces that others wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lurcher.errors import EXIT_DONE, EXIT_FAIL_SLOW, UserError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lurcher.analyze.values import Verdict
    from lurcher.ingest.log import Log

BAR_FROM_BYTES = 20_000_000
"""Smaller inputs are read before a bar could be seen."""
SHOWN_RESTARTS = 5


@click.command(short_help="Find slow periods in logs that others wrote.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "format_name", metavar="F", help="Read as this format instead of recognising it by content.")
@click.option(
    "--baseline", multiple=True, metavar="FILE", type=click.Path(path_type=Path), help="A healthy run of the same code and schedule. Repeatable."
)
@click.option(
    "--report", "report_path", metavar="OUT.html", type=click.Path(path_type=Path), help="Also write a page: of the one log, or of all runs."
)
@click.option(
    "--timeline",
    "timeline_path",
    metavar="OUT.json",
    type=click.Path(path_type=Path),
    help="Of a trace: also write one step, measured and ideal, as a Chrome timeline that opens in Perfetto (.json or .json.gz).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON on stdout; everything else goes to stderr.")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if a fail-slow was found, so that a script can tell.")
def analyze(
    files: tuple[Path, ...],
    format_name: str | None,
    baseline: tuple[Path, ...],
    report_path: Path | None,
    timeline_path: Path | None,
    as_json: bool,
    exit_code: bool,
) -> int:
    """Find slow periods in FILE...: logs of Megatron-LM, torchtitan, DeepSpeed, nanotron and others, CSV or Parquet tables, or run folders.

    A lone series of durations cannot tell hardware from work; workload columns, per-rank columns or --baseline can, and the
    verdict says what it had. A folder stands for all readable files in it: then there is one line a run, and the fleet's facts.
    Traces of operations (Parquet as ByteDance's StragglerAnalysis has it, or Chrome timelines) are replayed: what if a part were as fast as its like?
    """
    from lurcher.analyze.fleet import fleet, fleet_text, run_line
    from lurcher.analyze.from_log import analyze_log
    from lurcher.ingest.op_trace_read import is_trace
    from lurcher.ingest.read import FORMATS, read_logs

    if format_name is not None and format_name not in FORMATS:
        raise UserError(f"--format is {format_name}; allowed are {', '.join(FORMATS)}")
    for path in (*files, *baseline):
        if not path.exists():
            raise UserError(f"{path} does not exist; give a log, a table, a run folder, or a folder of them")
    if report_path is not None and report_path.exists():
        raise UserError(f"{report_path} exists already; name a new file for --report")
    if report_path is not None and not report_path.parent.is_dir():
        raise UserError(f"--report is {report_path}, and there is no folder {report_path.parent}; make it first")
    traces = tuple(path for path in files if format_name is None and is_trace(path))
    if traces:
        return _traces(traces, files, baseline, report_path, timeline_path, as_json=as_json, exit_code=exit_code)
    if timeline_path is not None:
        raise UserError(f"--timeline draws a step of an operation trace, and {files[0]} is none; --report draws a series")
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
        _print_json(verdicts)
    elif len(verdicts) == 1:
        for line in (verdicts[0].summary, *_events(verdicts[0]), *(f"  note  {note}" for note in logs[0].notes)):
            click.echo(line)
    else:
        for line in fleet_text(lines, facts):
            click.echo(line)
    if report_path is not None:
        click.echo(f"  report  {report_path}", err=as_json)
    return _exit_code(verdicts, exit_code)


def _traces(
    traces: tuple[Path, ...],
    files: tuple[Path, ...],
    baseline: tuple[Path, ...],
    report_path: Path | None,
    timeline_path: Path | None,
    *,
    as_json: bool,
    exit_code: bool,
) -> int:
    """The command for operation traces."""
    from lurcher.cli.trace import trace_lines, verdicts_on_traces

    if len(traces) < len(files):
        other = next(path for path in files if path not in traces)
        raise UserError(f"{traces[0]} is an operation trace and {other} is none; give the two kinds one after the other")
    if baseline:
        raise UserError(
            f"--baseline is {baseline[0]}, but {traces[0]} is an operation trace: its replicas are compared with each other; leave it out"
        )
    if timeline_path is not None and timeline_path.exists():
        raise UserError(f"{timeline_path} exists already; name a new file for --timeline")
    verdicts = verdicts_on_traces(traces, report_path, timeline_path)
    if as_json:
        _print_json(verdicts)
    for path, verdict in zip(traces, verdicts, strict=True) if not as_json else ():
        for line in (*([f"{path}:"] if len(traces) > 1 else []), verdict.summary, *_events(verdict), *trace_lines(verdict)):
            click.echo(line)
    for name, written in (("report", report_path), ("timeline", timeline_path)):
        if written is not None:
            click.echo(f"  {name}  {written}", err=as_json)
    return _exit_code(verdicts, exit_code)


def _with_replay(verdict: Verdict, log: Log) -> Verdict:
    """A run directory's verdict has the replay of its kept windows as well."""
    if log.format != "lurcher":
        return verdict
    from lurcher.analyze.trace import with_replay

    return with_replay(verdict, Path(log.path))


def _print_json(verdicts: Sequence[Verdict]) -> None:
    from lurcher.analyze.verdict import to_json, verdicts_to_json

    click.echo((to_json(verdicts[0]) if len(verdicts) == 1 else verdicts_to_json(verdicts)).decode(), nl=False)


def _exit_code(verdicts: Sequence[Verdict], asked: bool) -> int:
    return EXIT_FAIL_SLOW if asked and any(verdict.verdict == "fail_slow" for verdict in verdicts) else EXIT_DONE


def _events(verdict: Verdict) -> Iterator[str]:
    """A line an event; restarts share one, for some jobs have dozens."""
    restarts = [event for event in verdict.events if event.kind == "restart"]
    for event in verdict.events:
        if event.kind == "restart":
            continue
        span = f"{event.onset_iteration} to {event.end_iteration}" if event.end_iteration is not None else f"since {event.onset_iteration}"
        who = ", ".join(f"{s.component.kind} {s.component.id} x{s.slowdown:.3f} ({s.cause})" for s in event.suspects)
        yield f"  {event.kind:<11} {span}, x{event.slowdown:.3f}, {event.lost_s:.1f} s lost{f', {who}' if who else ''}; confirmed at {event.detected_iteration}"
    if restarts:
        shown = ", ".join(str(event.onset_iteration) for event in restarts[:SHOWN_RESTARTS])
        more = f" and {len(restarts) - SHOWN_RESTARTS} more" if len(restarts) > SHOWN_RESTARTS else ""
        yield f"  {'restart':<11} at {shown}{more}: recognised, no fault"


def _total_s(log: Log) -> float:
    """Seconds of the whole run: the job's time an iteration, times the iterations that a row stands for. Without a unit a row is a moment."""
    import numpy as np

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
