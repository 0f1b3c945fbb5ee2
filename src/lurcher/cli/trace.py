"""The part of `lurcher analyze` for operation traces: what it prints, and the files that it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from lurcher import __version__
from lurcher.analyze.trace import analyze_trace
from lurcher.analyze.values import Verdict
from lurcher.cli.verdicts import event_lines, exit_code_of, print_json
from lurcher.errors import UserError

SHOWN_PARTS = 4
"""Parts of a kind that a line names, the slowest first."""


def analyze_traces(
    traces: tuple[Path, ...],
    files: tuple[Path, ...],
    baseline: tuple[Path, ...],
    report_path: Path | None,
    timeline_path: Path | None,
    *,
    as_json: bool,
    exit_code: bool,
) -> int:
    """The command for operation traces; returns its exit code."""
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
        print_json(verdicts)
    for path, verdict in zip(traces, verdicts, strict=True) if not as_json else ():
        for line in (*([f"{path}:"] if len(traces) > 1 else []), verdict.summary, *event_lines(verdict), *trace_lines(verdict)):
            click.echo(line)
    for name, written in (("report", report_path), ("timeline", timeline_path)):
        if written is not None:
            click.echo(f"  {name}  {written}", err=as_json)
    return exit_code_of(verdicts, exit_code)


def verdicts_on_traces(paths: tuple[Path, ...], report_path: Path | None, timeline_path: Path | None) -> list[Verdict]:
    """The verdict on each trace; page and timeline are written for a single one. UserError for a broken trace, or more than one to draw."""
    if len(paths) > 1 and (report_path is not None or timeline_path is not None):
        raise UserError(f"--report and --timeline draw one trace, and {len(paths)} are given; name one")
    verdicts = []
    for path in paths:
        verdict, analysis = analyze_trace(path)
        verdicts.append(verdict)
        if report_path is not None:
            from lurcher.cli.log_report import write_page
            from lurcher.report.trace_page import render_trace

            write_page(report_path, render_trace(analysis, msgspec.to_builtins(verdict), __version__))
        if timeline_path is not None:
            from lurcher.report.trace_chrome import write_timeline

            write_timeline(analysis, timeline_path)
    return verdicts


def trace_lines(verdict: Verdict) -> Iterator[str]:
    """What a trace's verdict has beside its summary and events: slowdowns by part, and plans."""
    found = verdict.what_if or {}
    for title, key in (("by operation", "by_optype"), ("by stage", "by_stage"), ("by replica", "by_dp_rank"), ("by worker", "by_worker")):
        yield f"  {title:<13} {_largest(found[key])}"
    yield f"  {'shares':<13} M_W {found['m_w']:.3f} ({', '.join(found['m_w_workers'][:SHOWN_PARTS])}), M_S {found['m_s']:.3f}"
    for plan in verdict.plan.plans if verdict.plan is not None else ():
        yield f"  {'plan':<13} {plan.reason}"
    for event in verdict.events:
        for line in event.evidence:
            yield f"  {'because':<13} {line}"


def _largest(parts: Mapping[str, float]) -> str:
    slowest = sorted(parts.items(), key=lambda part: -part[1])
    more = f", {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return ", ".join(f"{name} x{value:.3f}" for name, value in slowest[:SHOWN_PARTS]) + more
