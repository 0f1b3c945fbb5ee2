"""One self-contained page: data, style, script and plotly in one file that opens offline.

Whatever came from outside (host names, commands, reasons) is escaped by jinja, and by `escape` inside charts, whose
labels are a kind of HTML. A content security policy names the page's own scripts by hash and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec

from lurcher.report.chart import Figure
from lurcher.report.words import percent, rate, ratio, seconds, size, split_text


def render_page(template: str, figures: Mapping[str, Figure], shown: Mapping[str, Any]) -> str:
    """`template` (a file beside this one, which extends page.html.j2) with what it shows; a figure is drawn where `data-figure` has its name.

    About 5 MB with a figure, nearly all of it plotly's script; a page without one does not carry it.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page = Environment(loader=PackageLoader("lurcher.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {"seconds": seconds, "rate": rate, "ratio": ratio, "percent": percent, "split": split_text, "size": size}
    scripts = [*([_plotly()] if figures else []), _text("report.js")]
    return page.get_template(template).render(
        shown,
        style=_text("report.css"),
        scripts=scripts,
        script_hashes=[_csp_hash(script) for script in scripts],
        figures={name: _json_for_html(figure) for name, figure in figures.items()},
    )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _text(name: str) -> str:
    return files("lurcher.report").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json_for_html(figure: Figure) -> str:
    """JSON that no string inside can end early: `<`, `>` and `&` only as escapes."""
    return msgspec.json.encode(figure).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
