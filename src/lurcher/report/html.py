"""The report of a run directory as one page."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from lurcher.report.change import main_change
from lurcher.report.chart import Figure
from lurcher.report.gantt import gantt_figure
from lurcher.report.generations import generations
from lurcher.report.headline import headline, suspect_text, tiles
from lurcher.report.iteration_figure import iteration_figure
from lurcher.report.load import Facts, load
from lurcher.report.page import render_page
from lurcher.report.pipeline import Panel, panels
from lurcher.report.rank_figure import rank_figure
from lurcher.report.ranks import Windows, grid, slowdowns, windows
from lurcher.report.state import state_lines
from lurcher.report.timeline import MAX_MARKS, Mark, marks
from lurcher.report.words import whereabouts
from lurcher.runlog import RunReader

MAX_LABELLED_CELLS = 64
"""Above this the cells of the rank grid are only colours, and say the rest on hover."""
MAX_GENERATIONS = 100
MAX_DECISIONS = 5000
"""Rows of the decision table; the first ones are kept, for they hold the cause."""


def render_html(run: RunReader) -> str:
    """The report of a run as one HTML page (about 5 MB, nearly all of it plotly's script)."""
    facts = load(run)
    moments, compared, drawn = marks(facts), windows(facts), panels(facts)
    figures: dict[str, Figure] = {"iterations": iteration_figure(facts, moments, compared), "ranks": rank_figure(facts, compared)}
    if drawn:
        figures["gantt"] = gantt_figure(drawn, facts)
    return render_page("report.html.j2", figures, context(facts, moments, compared, drawn))


def write_report(path: Path) -> Path:
    """Write report.html into run directory `path`, whole or not at all, and return its path."""
    target = path / "report.html"
    temporary = target.with_name(".report.html.tmp")
    temporary.write_text(render_html(RunReader(path)), encoding="utf-8", errors="replace")
    os.replace(temporary, target)
    return target


def context(facts: Facts, moments: list[Mark], compared: Windows, drawn: list[Panel]) -> dict[str, Any]:
    """Everything the template shows beside the figures."""
    change, slow = main_change(facts), slowdowns(facts, compared)
    rows, left_out = grid(facts, slow)
    return {
        "facts": facts,
        "header": facts.header,
        "started": datetime.fromtimestamp(facts.header.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "head": headline(facts, change),
        "badges": badges(facts),
        "tiles": tiles(facts, change),
        "has_iterations": bool(len(facts.series.index)),
        "marks": moments,
        "marks_cut": len(moments) == MAX_MARKS,
        "compared": compared,
        "rows": rows,
        "rows_left_out": left_out,
        "compact": sum(len(row.cells) for row in rows) > MAX_LABELLED_CELLS,
        "where": {r: whereabouts(place) for r, place in facts.places.items()},
        "heat": {r: heat(value) for r, value in slow.items()},
        "panels": drawn,
        "change": change,
        "generations": generations(facts)[:MAX_GENERATIONS],
        "state": state_lines(facts),
        "suspect_text": lambda suspect: suspect_text(facts.places, suspect),
        "decisions": facts.decisions[:MAX_DECISIONS],
        "num_decisions": len(facts.decisions),
        "kinds": sorted({d.kind for d in facts.decisions}),
        "job": msgspec.json.format(msgspec.json.encode(facts.header.job, enc_hook=str)).decode(),
    }


def badges(facts: Facts) -> list[tuple[str, str]]:
    """What a reader must know before any figure: a word, and what it means."""
    found = []
    if facts.header.emulated:
        found.append(("emulated devices", "Device time was emulated: the figures show how lurcher acts, not how fast a device is"))
    if facts.has_emulated_nodes:
        found.append(("emulated nodes", "All ranks ran on one host, which stood for several nodes"))
    if facts.header.injected:
        found.append(("fault put in on purpose", "; ".join(facts.header.injected)))
    return found


def heat(slowdown: float) -> int:
    """Colour strength 0..100 of a rank: none up to 1.05, full at 2.0 and above."""
    return round(100 * min(1.0, max(0.0, (slowdown - 1.05) / 0.95))) if math.isfinite(slowdown) else 0
