"""What each rank did before, during and after: slowdown against its own history, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lurcher.layout import Layout
from lurcher.report.load import Facts, group_by, median_of

MIN_WINDOW = 3
"""Fewer iterations than this tell nothing about a rank's pace."""
GRID_RANKS = 2048
"""Cells that a page can hold; of a larger job the replicas with the suspects and the slowest ranks are shown."""


@dataclass(frozen=True)
class Window:
    """Iterations `first` .. `end - 1`, with the name a reader sees."""

    name: str
    first: int
    end: int


@dataclass(frozen=True)
class Windows:
    """`healthy` and `fault` are compared for the grid; `phases` are drawn side by side, in time's order."""

    healthy: Window
    fault: Window
    phases: tuple[Window, ...]


@dataclass(frozen=True)
class Cell:
    """One rank of the grid."""

    rank: int
    slowdown: float
    suspect: bool


@dataclass(frozen=True)
class GridRow:
    """The ranks of one stage of one replica."""

    replica: int
    stage: int
    layers: str
    cells: tuple[Cell, ...]


def windows(facts: Facts) -> Windows:
    """The periods to compare: those of the event, or the first and the last third where nothing happened."""
    index = facts.series.index
    first, end = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
    warm = first + int(facts.header.job.get("detect", {}).get("warmup_iterations", MIN_WINDOW))
    event = facts.event
    if event is None or event.onset_iteration is None:
        third = (end - warm) // 3
        early, late = Window("first third", warm, warm + third), Window("last third", end - third, end)
        return Windows(early, late, (early, late))
    onset, over = event.onset_iteration, event.end_iteration + 1 if event.end_iteration is not None else end
    healthy = Window("before", warm, onset)
    if onset - warm < MIN_WINDOW:  # slow from the start: what came after is all there is to compare with
        healthy = Window("afterwards", over, end)
    changed = next((r.iteration for r in facts.reconfigurations() if r.outcome == "applied" and onset <= r.iteration < over), over)
    slow, mitigated = Window("slow", onset, changed), Window("new layout", changed + 1, over)
    phases = [w for w in (healthy, slow, mitigated) if w.end - w.first >= 1]
    return Windows(healthy, Window("fault", onset, over), tuple(sorted(phases, key=lambda w: w.first)))


def busy_per_token(rows: np.ndarray, window: Window) -> dict[int, float]:
    """Median seconds of own work per token of every rank in a window; ranks without tokens are left out."""
    inside = rows[(rows["index"] >= window.first) & (rows["index"] < window.end) & (rows["num_tokens"] > 0)]
    if window.end - window.first < MIN_WINDOW:
        return {}
    medians = group_by(inside["rank"], inside["busy_s"] / inside["num_tokens"], median_of)
    return dict(zip(np.unique(inside["rank"]).tolist(), medians.tolist(), strict=True))


def slowdowns(facts: Facts, compared: Windows) -> dict[int, float]:
    """Busy time per token during the fault over the rank's own before it; 1.0 is healthy. Ranks without either are missing."""
    before, during = busy_per_token(facts.rows, compared.healthy), busy_per_token(facts.rows, compared.fault)
    return {r: during[r] / before[r] for r in during if before.get(r, 0.0) > 0}


def grid(facts: Facts, slow: dict[int, float]) -> tuple[list[GridRow], int]:
    """The rows of the rank grid, and how many were left out for being too many; the replicas with the slowest ranks stay."""
    rows = []
    for d, s, stage in facts.layout.stages():
        cells = tuple(Cell(r, slow.get(r, float("nan")), r in facts.suspects) for r in stage.ranks)
        layers = ", ".join(f"{chunk.first}–{chunk.end - 1}" if len(chunk) > 1 else str(chunk.first) for chunk in stage.chunks)
        rows.append(GridRow(d, s, layers, cells))
    if sum(len(row.cells) for row in rows) <= GRID_RANKS:
        return rows, 0
    worst: dict[int, float] = {}
    for row in rows:
        worst[row.replica] = max([worst.get(row.replica, 0.0), *(2.0 * c.suspect + float(np.nan_to_num(c.slowdown)) for c in row.cells)])
    rows.sort(key=lambda row: (-worst[row.replica], row.replica, row.stage))
    kept = rows[: max(1, GRID_RANKS // max(len(row.cells) for row in rows))]
    return sorted(kept, key=lambda row: (row.replica, row.stage)), len(rows) - len(kept)


def shares(facts: Facts, window: Window, ranks: list[int]) -> dict[str, list[float]]:
    """Median seconds an iteration that each of `ranks` spent busy, transferring, reading input and waiting, in a window."""
    rows = facts.rows
    inside = rows[(rows["index"] >= window.first) & (rows["index"] < window.end) & np.isin(rows["rank"], ranks)]
    transfer = inside["transfer_tp_s"] + inside["transfer_dp_s"] + inside["transfer_pp_s"] + inside["transfer_world_s"]
    columns = {"busy": inside["busy_s"], "transfer": transfer, "input": inside["input_s"], "wait": inside["wait_s"]}
    present = np.unique(inside["rank"]).tolist()
    found = {name: dict(zip(present, group_by(inside["rank"], column, median_of).tolist(), strict=True)) for name, column in columns.items()}
    return {name: [value if np.isfinite(value := of.get(r, 0.0)) else 0.0 for r in ranks] for name, of in found.items()}


def ranks_to_draw(layout: Layout, suspects: frozenset[int], limit: int) -> list[int]:
    """At most `limit` ranks, in the layout's order: the suspects, then their stage, replica and cohort, then the others."""
    at = {r: (d, s, t) for d, s, stage in layout.stages() for t, r in enumerate(stage.ranks)}
    named = [at[r] for r in suspects if r in at] or [(0, 0, 0)]

    def distance(rank: int) -> tuple[int, int]:
        d, s, t = at[rank]
        return min((0 if (d, s, t) == p else 1 if (d, s) == p[:2] else 2 if d == p[0] else 3 if (s, t) == p[1:] else 4) for p in named), rank

    chosen = set(sorted(at, key=distance)[:limit])
    return [r for r in at if r in chosen]
