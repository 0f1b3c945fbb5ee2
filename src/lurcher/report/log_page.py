"""The page of a log of others: verdict, series with its events, suspects beside the other ranks, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lurcher.ingest.log import Log
from lurcher.report.chart import Figure
from lurcher.report.headline import suspect_text
from lurcher.report.log_facts import LogFacts, log_facts
from lurcher.report.log_figure import log_figure, log_marks
from lurcher.report.log_headline import log_headline, log_tiles
from lurcher.report.log_rank_figure import log_rank_figure
from lurcher.report.page import render_page
from lurcher.report.timeline import Mark


def render_log(log: Log, verdict: Mapping[str, Any], version: str) -> str:
    """One log and its verdict (as in verdict.json) as one HTML page that opens offline."""
    facts = log_facts(log, verdict)
    marks = log_marks(facts)
    figures: dict[str, Figure] = {"series": log_figure(facts, marks)}
    if (ranks := log_rank_figure(facts)) is not None:
        figures["ranks"] = ranks
    return render_page(
        "log.html.j2",
        figures,
        {**_shown(facts), "marks": marks, "numbers": _numbers(facts, marks), "version": version, "has_ranks": ranks is not None},
    )


def _numbers(facts: LogFacts, marks: Sequence[Mark]) -> dict[int, tuple[int, str]]:
    """Place of an event in the verdict -> the number and the kind of its mark."""
    at = {id(event): place for place, event in enumerate(facts.verdict.events)}
    drawn = [at[id(event)] for event in facts.drawn if event.onset_iteration is not None]
    return {place: (number, mark.kind) for number, (place, mark) in enumerate(zip(drawn, marks, strict=True), 1)}


def _shown(facts: LogFacts) -> dict[str, Any]:
    return {
        "facts": facts,
        "name": PurePath(facts.log.path).name,
        "head": log_headline(facts),
        "badges": [("relative times", "The input names no unit: only ratios mean something")] if facts.log.relative else [],
        "tiles": log_tiles(facts),
        "events_left_out": len(facts.verdict.events) - len(facts.drawn),
        "suspect_text": lambda suspect: suspect_text({}, suspect),
        "carries": sorted(facts.log.columns),
    }
