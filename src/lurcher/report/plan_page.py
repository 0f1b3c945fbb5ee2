"""The page of `lurcher plan`: ranked plans, and the layout before and after the best, as rank grids. One file, no script, opens offline."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lurcher.layout import Layout, Stage
from lurcher.plan.problem import Problem
from lurcher.records import Plan
from lurcher.report.html import heat
from lurcher.report.plan_text import duration, faults_words, figures, is_present, present_words
from lurcher.report.words import ratio, size

MOST_CELLS = 2048
"""Ranks that each grid shows; of a larger job the replicas with most slow and dead ranks, before or after."""
LABELLED_CELLS = 96
"""Above this the cells are only colours, and say the rest on pointing at them."""


@dataclass(frozen=True)
class Cell:
    """One rank of a grid. `part` is its share of the stage as text; `tone` is "dead", "slow" or "" and `heat` 0 .. 100."""

    rank: int
    part: str
    tone: str
    heat: int
    hint: str


@dataclass(frozen=True)
class Row:
    """The ranks of one stage. `changed`: other ranks, shares or layers than in the present layout."""

    stage: int
    layers: str
    cells: tuple[Cell, ...]
    changed: bool


@dataclass(frozen=True)
class Block:
    """One replica."""

    replica: int
    microbatches: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Grid:
    """A layout to draw: the replicas shown, the standby ranks, and how many replicas are left out."""

    title: str
    blocks: tuple[Block, ...]
    standby: tuple[Cell, ...]
    left_out: int


def write_plan_page(plans: Sequence[Plan], problem: Problem, name: str, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(render_plan_page(plans, problem, name), encoding="utf-8", errors="replace")
    os.replace(temporary, path)


def render_plan_page(plans: Sequence[Plan], problem: Problem, name: str) -> str:
    """The page as HTML. `name` is what the problem was read from."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page = Environment(loader=PackageLoader("lurcher.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    present = next(plan for plan in plans if is_present(plan))
    best = plans[0]
    shown = _shown(problem, (problem.layout, best.layout))
    grids = [_grid("Present layout", problem.layout, problem, shown)]
    if not is_present(best):
        grids.append(_grid("Best plan", best.layout, problem, shown))
    return page.get_template("plan.html.j2").render(
        name=name,
        style=files("lurcher.report").joinpath("report.css").read_text(encoding="utf-8"),
        faults=faults_words(problem),
        summary=present_words(present, problem),
        best=best,
        keeps=is_present(best),
        head=figures(best),
        plans=[(plan, figures(plan)) for plan in plans],
        bar=_bar(plans),
        grids=grids,
        compact=sum(len(row.cells) for block in grids[0].blocks for row in block.rows) > LABELLED_CELLS,
        duration=duration,
        size=size,
        num_ranks=problem.layout.world_size,
    )


def _bar(plans: Sequence[Plan]) -> dict[int, float]:
    """Length of each plan's bar in per cent of the longest; none for what cannot run."""
    longest = max((plan.predicted_s for plan in plans if math.isfinite(plan.predicted_s)), default=1.0)
    return {i: 100 * plan.predicted_s / longest for i, plan in enumerate(plans) if math.isfinite(plan.predicted_s)}


def _shown(problem: Problem, layouts: Sequence[Layout]) -> list[int]:
    """Numbers of the replicas to draw: all, or those with most slow and dead ranks."""
    ill = set(problem.rates.dead).union(rank for rank, factor in problem.rates.slowdown.items() if factor != 1.0)
    counts: dict[int, int] = {}
    for layout in layouts:
        for d, _, stage in layout.stages():
            counts[d] = counts.get(d, 0) + len(ill.intersection(stage.ranks))
    each = max(len(layouts[0].ranks) // len(layouts[0].replicas), 1)
    most = max(MOST_CELLS // each, 1)
    return sorted(sorted(counts, key=lambda d: (-counts[d], d))[:most])


def _grid(title: str, layout: Layout, problem: Problem, shown: Sequence[int]) -> Grid:
    before = {(d, s): stage for d, s, stage in problem.layout.stages()}
    blocks = []
    for d in shown:
        if d < len(layout.replicas):
            replica = layout.replicas[d]
            rows = tuple(_row(s, stage, problem, stage != before.get((d, s))) for s, stage in enumerate(replica.stages))
            blocks.append(Block(d, replica.microbatches, rows))
    standby = tuple(_cell(rank, "stands by", problem) for rank in layout.standby[:MOST_CELLS])
    return Grid(title, tuple(blocks), standby, max(len(layout.replicas) - len(blocks), 0))


def _row(s: int, stage: Stage, problem: Problem, changed: bool) -> Row:
    layers = f"{stage.num_layers} layer{'s' * (stage.num_layers != 1)}"
    total = sum(stage.shares)
    cells = tuple(_cell(rank, f"{100 * share / total:.0f} %", problem) for rank, share in zip(stage.ranks, stage.shares, strict=True))
    return Row(s, layers, cells, changed)


def _cell(rank: int, part: str, problem: Problem) -> Cell:
    rates = problem.rates
    slowdown = rates.slowdown.get(rank, 1.0)
    dead = rank in rates.dead
    state = "dead" if dead else f"{ratio(slowdown)}" if slowdown != 1.0 else "healthy"
    return Cell(rank, part, "dead" if dead else "slow" if slowdown != 1.0 else "", 0 if dead else heat(slowdown), f"rank {rank}, {part}, {state}")
