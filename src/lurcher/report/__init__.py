"""Reports of a run: a page that opens offline, and the same facts as text. Everything comes from the run directory alone."""

from __future__ import annotations

from lurcher.report.html import render_html, write_report
from lurcher.report.text import render_text

__all__ = ["render_html", "render_text", "write_report"]
