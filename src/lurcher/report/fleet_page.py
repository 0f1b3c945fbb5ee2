"""The page of many runs: the fleet's facts, and one line a run with its series in small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np

from lurcher.ingest.log import Log
from lurcher.report.buckets import buckets
from lurcher.report.headline import TITLES, Tile, suspect_text
from lurcher.report.load import Series
from lurcher.report.log_facts import LogFacts, log_facts, places
from lurcher.report.log_figure import visible_range
from lurcher.report.page import render_page
from lurcher.report.words import DASH, percent, ratio, seconds

WIDTH, HEIGHT, NUM_POINTS = 220, 34, 110
"""Of a small picture, in its own units, and the points it is drawn with."""
MOST_TOLD = 3


class FleetView(msgspec.Struct, frozen=True):
    """The facts over all runs, as far as they are known: see lurcher.analyze.fleet."""

    num_runs: int = 0
    share_hit: float | None = None
    mean_inflation_of_hit: float | None = None
    lost_hours_by_cause: dict[str, float] = {}
    median_duration_s: float | None = None
    p90_duration_s: float | None = None


@dataclass(frozen=True)
class FleetRun:
    """One run: its log, its verdict (as in verdict.json), the seconds it lost to fail-slow, and its time over what it would have taken without."""

    log: Log
    verdict: Mapping[str, Any]
    lost_s: float
    inflation: float


@dataclass(frozen=True)
class Picture:
    """A series as an SVG line, and its events as bars behind it: (x, width, kind)."""

    line: str
    bars: tuple[tuple[float, float, str], ...]


def render_fleet(runs: Sequence[FleetRun], facts: Mapping[str, Any], version: str) -> str:
    """All runs, the costliest first, as one HTML page that opens offline."""
    folder = _common([run.log.path for run in runs])
    rows = [_row(run, folder) for run in sorted(runs, key=lambda run: -run.lost_s)]
    view = msgspec.convert(dict(facts), FleetView, strict=False)
    shown = {"rows": rows, "folder": folder, "tiles": _tiles(view), "causes": _causes(view), "version": version, "width": WIDTH, "height": HEIGHT}
    return render_page("fleet.html.j2", {}, shown)


def picture(facts: LogFacts) -> Picture:
    """The small picture of a run."""
    series = facts.series
    seen = buckets(series.index, series.observed_s, NUM_POINTS, NUM_POINTS)
    low, high = visible_range(Series(seen.index, seen.middle, series.expected_s))
    first, span = float(series.index[0]), max(1.0, float(series.index[-1] - series.index[0]))
    x = (seen.index - first) / span * WIDTH
    y = HEIGHT * (1.0 - np.clip((seen.middle - low) / (high - low), 0.0, 1.0))
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True) if np.isfinite(b))
    bars = []
    for event in facts.drawn:
        at = series.index[places(series.index, event)]
        if event.kind != "restart" and len(at):
            begin = (float(at[0]) - first) / span * WIDTH
            bars.append((round(begin, 1), round(max(1.0, (float(at[-1]) - first) / span * WIDTH - begin), 1), event.kind))
    return Picture(line, tuple(bars))


def _common(paths: Sequence[str]) -> str:
    """The folder that all paths begin with, with its last slash."""
    parts = zip(*(PurePath(path).parent.parts for path in paths), strict=False)
    common = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, parts)]
    return f"{PurePath(*common)}/" if common else ""


def _row(run: FleetRun, folder: str) -> dict[str, Any]:
    facts = log_facts(run.log, run.verdict)
    verdict = facts.verdict.verdict if facts.verdict.verdict in TITLES else "inconclusive"
    lasting = sorted((e for e in facts.verdict.events if e.kind != "restart"), key=lambda e: (e.kind == "burst", -(e.lost_s or 0.0)))
    told = [f"{facts.name(event)}, {facts.what(event)}" for event in lasting[:MOST_TOLD]]
    return {
        "path": run.log.path.removeprefix(folder),
        "format": run.log.format,
        "num_iterations": len(facts.series.index),
        "num_ranks": run.log.num_ranks,
        "tone": verdict,
        "title": TITLES[verdict],
        "summary": facts.verdict.summary,
        "who": "; ".join(suspect_text({}, suspect) for suspect in facts.event.suspects[:2]) if facts.event else "",
        "told": told,
        "more": len(lasting) - len(told),
        "lost": seconds(run.lost_s) if run.lost_s > 0 else DASH,
        "inflation": f"{run.inflation:.3f}×" if run.inflation > 1 else DASH,
        "picture": picture(facts),
    }


def _tiles(view: FleetView) -> list[Tile]:
    hours = sum(view.lost_hours_by_cause.values())
    return [
        Tile("Hit by fail-slow", percent(view.share_hit), "", f"of {view.num_runs} runs", "slow" if view.share_hit else "healthy"),
        Tile("A hit run took", ratio(view.mean_inflation_of_hit), "", "of its time without fail-slow, on average", "slow"),
        Tile("Lost", seconds(hours * 3600.0) if hours else DASH, "", "to fail-slow, over all runs"),
        Tile("A fail-slow lasted", seconds(view.median_duration_s), "", f"in the median; the longest tenth {seconds(view.p90_duration_s)} and more"),
    ]


def _causes(view: FleetView) -> list[tuple[str, str, float]]:
    """Cause, what it lost, and its share of all in percent; the largest first."""
    whole = sum(view.lost_hours_by_cause.values()) or 1.0
    return [(cause, seconds(hours * 3600.0), 100.0 * hours / whole) for cause, hours in sorted(view.lost_hours_by_cause.items(), key=lambda c: -c[1])]
