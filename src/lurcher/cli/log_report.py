"""A page for a log of others: the log as a run directory for a moment, and the report that every run directory gets."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from lurcher import __version__
from lurcher.analyze.values import Verdict
from lurcher.ingest.log import Log
from lurcher.layout import Layout
from lurcher.records import Decision, Place
from lurcher.report import render_html
from lurcher.runlog import RunHeader, RunReader, RunWriter


def write_log_report(log: Log, verdict: Verdict, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    ranks = np.unique(log.rows["rank"])
    layout = Layout.uniform(tp=1, pp=1, dp=int(ranks.max()) + 1, num_layers=1, num_microbatches=int(ranks.max()) + 1)
    header = RunHeader(
        lurcher_version=__version__,
        versions={},
        job={"input": {"path": log.path, "format": log.format, "iterations_per_line": log.stride}},
        layout=layout,
        places=tuple(Place(int(rank), "unknown") for rank in ranks),
        emulated=False,
        started_unix_s=time.time(),
        command=f"lurcher analyze {log.path}",
    )
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        run = RunWriter.create(Path(folder) / "run", header)
        run.iterations(log.rows)
        for event in verdict.events:
            for reason in event.evidence:
                run.decide(Decision(event.detected_iteration, 0.0, "note", reason))
        run.verdict(verdict)
        run.close()
        page = Path(folder) / "page.html"
        page.write_text(render_html(RunReader(Path(folder) / "run")), encoding="utf-8")
        page.replace(path)
