"""Reports: pages that open offline, and the same facts as text, from a run directory or from a log with its verdict."""

from __future__ import annotations

from lurcher.report.fleet_page import FleetRun, render_fleet
from lurcher.report.html import render_html, write_report
from lurcher.report.log_page import render_log
from lurcher.report.text import render_text

__all__ = ["FleetRun", "render_fleet", "render_html", "render_log", "render_text", "write_report"]
