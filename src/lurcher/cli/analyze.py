"""`lurcher analyze`: the diagnosis of logs and traces that others wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lurcher.errors import EXIT_DONE, EXIT_FAIL_SLOW, UserError

if TYPE_CHECKING:
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
@click.option("--report", "report_path", metavar="OUT.html", type=click.Path(path_type=Path), help="Also write a page for one input.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON on stdout; everything else goes to stderr.")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if a fail-slow was found, so that a script can tell.")
def analyze(
    files: tuple[Path, ...], format_name: str | None, baseline: tuple[Path, ...], report_path: Path | None, as_json: bool, exit_code: bool
) -> int:
    """Find slow periods in FILE...: logs of Megatron-LM, torchtitan, DeepSpeed, nanotron and others, CSV or Parquet tables, or run folders.

    A lone series of durations cannot tell hardware from work; workload columns, per-rank columns or --baseline can, and the
    verdict says what it had. A folder stands for all readable files in it: then there is one line a run, and the fleet's facts.
    """
    from lurcher.analyze.fleet import fleet, fleet_text, run_line
    from lurcher.analyze.from_log import analyze_log
    from lurcher.analyze.verdict import to_json, verdicts_to_json
    from lurcher.ingest.read import FORMATS, read_logs

    if format_name is not None and format_name not in FORMATS:
        raise UserError(f"--format is {format_name}; allowed are {', '.join(FORMATS)}")
    for path in (*files, *baseline):
        if not path.exists():
            raise UserError(f"{path} does not exist; give a log, a table, a run folder, or a folder of them")
    if report_path is not None and report_path.exists():
        raise UserError(f"{report_path} exists already; name a new file for --report")
    with _progress(files) as tell:
        logs = read_logs(files, format_name, tell)
        siblings = read_logs(baseline, format_name)
        verdicts = [analyze_log(log, siblings) for log in logs]
    if report_path is not None:
        if len(logs) != 1:
            raise UserError(f"--report draws one input, but {len(logs)} were given; analyze them one by one")
        from lurcher.cli.log_report import write_log_report

        write_log_report(logs[0], verdicts[0], report_path)
    if as_json:
        click.echo((to_json(verdicts[0]) if len(verdicts) == 1 else verdicts_to_json(verdicts)).decode(), nl=False)
    elif len(verdicts) == 1:
        for line in (verdicts[0].summary, *_events(verdicts[0]), *(f"  note  {note}" for note in logs[0].notes)):
            click.echo(line)
    else:
        lines = [run_line(verdict, _total_s(log)) for verdict, log in zip(verdicts, logs, strict=True)]
        for line in fleet_text(lines, fleet(verdicts, lines)):
            click.echo(line)
    if report_path is not None:
        click.echo(f"  report  {report_path}", err=as_json)
    return EXIT_FAIL_SLOW if exit_code and any(v.verdict == "fail_slow" for v in verdicts) else EXIT_DONE


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
    """Seconds of the whole run: the job's time an iteration, times the iterations that a row stands for."""
    import numpy as np

    first = log.rows["rank"] == log.rows["rank"].min()
    return float(np.nansum(log.rows["duration_s"][first])) * log.stride


@contextmanager
def _progress(files: tuple[Path, ...]) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr for large inputs on a terminal, else nothing."""
    size = sum(path.stat().st_size for path in files if path.is_file())
    if size < BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
