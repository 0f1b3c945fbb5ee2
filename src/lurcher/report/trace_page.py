"""The page of a traced job: verdict, map of the workers, one step measured and ideal, slowdowns by part, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from lurcher.localize.whatif import TraceAnalysis
from lurcher.report.headline import REAL_OR_NOT, TITLES, Headline, Tile, suspect_text
from lurcher.report.page import render_page
from lurcher.report.trace_figures import shown_workers, step_figure, worker_map
from lurcher.report.trace_spans import ideal_spans, measured_spans, typical_step
from lurcher.report.verdict_view import SuspectView, VerdictView, view_verdict
from lurcher.report.words import percent, ratio, seconds

UNEVEN = "The work: no part is slow, the work is unevenly spread."
LEAST_WON = 0.01
"""Part of the step that a tile tells of."""
MOST_ROWS = 24
"""Rows of a table; of more, the costliest."""


def render_trace(analysis: TraceAnalysis, verdict: Mapping[str, Any], version: str) -> str:
    """A trace's analysis and its verdict (as in verdict.json) as one HTML page that opens offline."""
    path = analysis.dense.trace.path
    view = view_verdict(dict(verdict), path) or VerdictView()
    slow = [(worker.dp, worker.stage) for worker in analysis.slow]
    place = typical_step(analysis)
    panels = [measured_spans(analysis, place), ideal_spans(analysis, place)]
    figures = {"map": worker_map(analysis, slow), "step": step_figure(analysis, panels, shown_workers(analysis, slow), slow)}
    shown = {
        "name": PurePath(path).name,
        "path": path,
        "format": analysis.dense.trace.format,
        "notes": analysis.dense.trace.notes,
        "analysis": analysis,
        "head": _headline(view, verdict),
        "tiles": _tiles(analysis),
        "events": view.events,
        "suspect_text": _part,
        "tables": _tables(analysis),
        "plans": (verdict.get("plan") or {}).get("plans", ()),
        "present_s": analysis.causes.no_delay_s,
        "version": version,
    }
    return render_page("trace.html.j2", figures, shown)


def _headline(view: VerdictView, verdict: Mapping[str, Any]) -> Headline:
    kind = view.verdict if view.verdict in TITLES else "inconclusive"
    named = [suspect for event in view.events for suspect in event.suspects]
    plans = (verdict.get("plan") or {}).get("plans", ())
    answers = (
        ("A real fault, or the workload?", UNEVEN if kind == "not_hardware" else REAL_OR_NOT[kind]),
        ("Which part?", "; ".join(_part(suspect) for suspect in named[:4]) + "." if named else "None stands out from its like."),
        ("What would help?", f"{plans[0]['reason']}." if plans else "Nothing that a plan could change wins a hundredth."),
    )
    return Headline(kind, TITLES[kind], view.summary, answers)


def _part(suspect: SuspectView) -> str:
    part = suspect.component
    return f"{part.kind} {part.id}: {ratio(suspect.slowdown)} the work of the others" if part.kind == "stage" else suspect_text({}, suspect)


def _tiles(analysis: TraceAnalysis) -> list[Tile]:
    found, causes = analysis.what_if, analysis.causes
    won = {"stage": "stages of equal work", "lengths": "micro-batches of equal length", "communication": "transfers of equal time"}
    parts = [("healthy workers", causes.workers_won_s)] if analysis.slow else []
    parts += [(won[share.cause], share.won_s) for share in causes.shares]
    best = [part for part in sorted(parts, key=lambda part: -part[1]) if part[1] >= LEAST_WON * causes.no_delay_s][:2]
    return [
        Tile("Step", seconds(float(found.measured_s.mean())), "", "mean, as measured", "slow"),
        Tile("Step if all were alike", seconds(found.ideal_s), "", "replayed with the mean of each kind of operation", "healthy"),
        Tile("Slowdown S", ratio(found.slowdown), "", "launch delays taken out"),
        Tile("Launching late", ratio(found.launch_slowdown), "", "what the hosts add"),
        Tile(
            "M_W",
            percent(round(found.m_w.share, 2) + 0.0),
            "",
            f"of the slowdown goes with the worst {len(found.worst)} of {analysis.num_replicas * analysis.num_stages} workers",
        ),
        Tile("M_S", percent(round(found.m_s.share, 2) + 0.0), "", "of the slowdown goes with the last stage"),
        *(Tile(f"With {name}", f"−{seconds(value)}", "", "a step, on top of what costs more", "mitigated") for name, value in best),
    ]


def _tables(analysis: TraceAnalysis) -> list[tuple[str, list[tuple[str, str, str]], int]]:
    """Title, rows (part, slowdown with it alone as measured, seconds a step that making it ideal wins) and how many rows are left out."""
    found = analysis.what_if
    now_s = found.no_delay_s.mean()
    worker_s = found.only_worker_s.reshape(-1, found.only_worker_s.shape[-1])
    names = [f"dp{dp}/stage{stage}" for dp in range(analysis.num_replicas) for stage in range(analysis.num_stages)]
    without_s = found.without_worker_s.reshape(worker_s.shape)
    parts = (
        ("By operation", list(found.types), found.only_type_s, found.without_type_s),
        ("By stage", [f"stage {i}" for i in range(analysis.num_stages)], found.only_stage_s, found.without_stage_s),
        ("By replica", [f"dp{i}" for i in range(analysis.num_replicas)], found.only_dp_s, np.full_like(found.only_dp_s, np.nan)),
        ("By worker", names, worker_s, without_s),
    )
    tables = []
    for title, labels, only_s, rest_s in parts:
        slowdowns, won_s = found.ratios(only_s), now_s - rest_s.mean(axis=-1)
        order = np.argsort(-slowdowns, kind="stable")[:MOST_ROWS]
        rows = [(labels[i], f"{slowdowns[i]:.3f}×", seconds(float(won_s[i]))) for i in order.tolist()]
        tables.append((title, rows, len(labels) - len(rows)))
    return tables
