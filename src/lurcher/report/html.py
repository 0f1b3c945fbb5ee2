"""One self-contained page: data, style, script and plotly in one file that opens offline.

Whatever came from outside (host names, commands, reasons) is escaped by jinja, and by `escape` inside charts, whose
labels are a kind of HTML. A content security policy names the page's own scripts by hash and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from lurcher.report.change import main_change
from lurcher.report.chart import Figure
from lurcher.report.gantt import gantt_figure
from lurcher.report.headline import headline, suspect_text, tiles
from lurcher.report.iteration_figure import iteration_figure
from lurcher.report.load import Facts, load
from lurcher.report.pipeline import panels
from lurcher.report.rank_figure import rank_figure
from lurcher.report.ranks import grid, slowdowns, windows
from lurcher.report.timeline import MAX_MARKS, marks
from lurcher.report.words import percent, rate, ratio, seconds, split_text, whereabouts
from lurcher.runlog import RunReader

MAX_LABELLED_CELLS = 64
"""Above this the cells of the rank grid are only colours, and say the rest on hover."""
MAX_DECISIONS = 5000
"""Rows of the decision table; the first ones are kept, for they hold the cause."""


def render_html(run: RunReader) -> str:
    """The report of a run as one HTML page (about 5 MB, nearly all of it plotly's script)."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    page = Environment(loader=PackageLoader("lurcher.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {"seconds": seconds, "rate": rate, "ratio": ratio, "percent": percent, "split": split_text}
    own_script, plotly_script = _text("report.js"), get_plotlyjs()
    facts = load(run)
    return page.get_template("report.html.j2").render(
        context(facts),
        style=_text("report.css"),
        own_script=own_script,
        plotly_script=plotly_script,
        script_hashes=[_csp_hash(own_script), _csp_hash(plotly_script)],
    )


def write_report(path: Path) -> Path:
    """Write report.html into run directory `path`, whole or not at all, and return its path."""
    target = path / "report.html"
    temporary = target.with_name(".report.html.tmp")
    temporary.write_text(render_html(RunReader(path)), encoding="utf-8", errors="replace")
    os.replace(temporary, target)
    return target


def context(facts: Facts) -> dict[str, Any]:
    """Everything the template shows."""
    change, compared, moments, drawn = main_change(facts), windows(facts), marks(facts), panels(facts)
    slow = slowdowns(facts, compared)
    rows, left_out = grid(facts, slow)
    figures: dict[str, Figure] = {"iterations": iteration_figure(facts, moments, compared), "ranks": rank_figure(facts, compared)}
    if drawn:
        figures["gantt"] = gantt_figure(drawn, facts)
    return {
        "facts": facts,
        "header": facts.header,
        "started": datetime.fromtimestamp(facts.header.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "head": headline(facts, change),
        "tiles": tiles(facts, change),
        "figures": {name: _json_for_html(figure) for name, figure in figures.items()},
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
        "suspect_text": lambda suspect: suspect_text(facts, suspect),
        "decisions": facts.decisions[:MAX_DECISIONS],
        "num_decisions": len(facts.decisions),
        "kinds": sorted({d.kind for d in facts.decisions}),
        "job": msgspec.json.format(msgspec.json.encode(facts.header.job, enc_hook=str)).decode(),
    }


def heat(slowdown: float) -> int:
    """Colour strength 0..100 of a rank: none up to 1.05, full at 2.0 and above."""
    return round(100 * min(1.0, max(0.0, (slowdown - 1.05) / 0.95))) if math.isfinite(slowdown) else 0


def _text(name: str) -> str:
    return files("lurcher.report").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json_for_html(figure: Figure) -> str:
    """JSON that no string inside can end early: `<`, `>` and `&` only as escapes."""
    return msgspec.json.encode(figure).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
