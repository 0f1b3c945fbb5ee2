"""The page of what `lurcher analyze` found: of one log, or of many runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lurcher import __version__
from lurcher.analyze.fleet import Fleet, RunLine
from lurcher.analyze.values import Verdict
from lurcher.errors import UserError
from lurcher.ingest.log import Log
from lurcher.report import FleetRun, render_fleet, render_log


def write_log_report(log: Log, verdict: Verdict, path: Path) -> None:
    """Write the page of one log to `path`, whole or not at all."""
    write_page(path, render_log(log, msgspec.to_builtins(verdict), __version__))


def write_fleet_report(logs: Sequence[Log], verdicts: Sequence[Verdict], lines: Sequence[RunLine], facts: Fleet, path: Path) -> None:
    """Write the page of several runs, given in one order, to `path`, whole or not at all."""
    runs = [
        FleetRun(log, msgspec.to_builtins(verdict), line.lost_s, line.inflation) for log, verdict, line in zip(logs, verdicts, lines, strict=True)
    ]
    write_page(path, render_fleet(runs, msgspec.to_builtins(facts), __version__))


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all; UserError where that cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(page, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: {error.strerror or error}; name a file for --report in a folder that can be written") from error
