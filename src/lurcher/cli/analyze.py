"""`lurcher analyze`: the diagnosis of logs and traces that others wrote."""

from __future__ import annotations

from pathlib import Path

import click

from lurcher.errors import UserError


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
    # Logs and traces share no code but the verdict: the half that is not needed is not loaded, it would cost more than a trace's analysis.
    from lurcher.ingest.op_trace_read import is_trace

    _check(files, format_name, baseline, report_path)
    traces = tuple(path for path in files if format_name is None and is_trace(path))
    if traces:
        from lurcher.cli.trace import analyze_traces

        return analyze_traces(traces, files, baseline, report_path, timeline_path, as_json=as_json, exit_code=exit_code)
    if timeline_path is not None:
        raise UserError(f"--timeline draws a step of an operation trace, and {files[0]} is none; --report draws a series")
    from lurcher.cli.logs import analyze_logs

    return analyze_logs(files, format_name, baseline, report_path, as_json=as_json, exit_code=exit_code)


def _check(files: tuple[Path, ...], format_name: str | None, baseline: tuple[Path, ...], report_path: Path | None) -> None:
    """What can be told to be wrong before anything is read."""
    if format_name is not None:
        from lurcher.ingest.read import FORMATS

        if format_name not in FORMATS:
            raise UserError(f"--format is {format_name}; allowed are {', '.join(FORMATS)}")
    for path in (*files, *baseline):
        if not path.exists():
            raise UserError(f"{path} does not exist; give a log, a table, a run folder, or a folder of them")
    if report_path is not None and report_path.exists():
        raise UserError(f"{report_path} exists already; name a new file for --report")
    if report_path is not None and not report_path.parent.is_dir():
        raise UserError(f"--report is {report_path}, and there is no folder {report_path.parent}; make it first")
