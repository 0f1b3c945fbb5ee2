"""The report for a terminal: the same facts in some thirty lines."""

from __future__ import annotations

from lurcher.report.change import Change, main_change
from lurcher.report.generations import Generation, generations
from lurcher.report.headline import headline, tiles
from lurcher.report.load import Facts, load
from lurcher.report.ranks import grid, slowdowns, windows
from lurcher.report.state import state_lines
from lurcher.report.timeline import marks
from lurcher.report.words import for_terminal, percent, ratio, seconds, size
from lurcher.runlog import RunReader

MAX_ROWS = 8
MAX_CELLS = 8
MOST_OBVIOUS = 3
"""Layouts that the lines about the change tell already: the first, another, and the way back."""


def render_text(run: RunReader) -> str:
    """The report as plain text, ending with a newline. Control characters of outside text are replaced."""
    facts = load(run)
    change = main_change(facts)
    parts = [
        _top(facts, change),
        _figures(facts, change),
        _timeline(facts),
        _ranks(facts),
        _change(change),
        _generations(generations(facts)),
        _state(facts),
    ]
    return for_terminal("\n\n".join("\n".join(lines) for lines in parts if lines)) + "\n"


def _top(facts: Facts, change: Change | None) -> list[str]:
    head = headline(facts, change)
    badge = ("  [emulated devices]" if facts.header.emulated else "") + ("  [emulated nodes]" if facts.has_emulated_nodes else "")
    injected = [f"  put in on purpose: {'; '.join(facts.header.injected)}"] if facts.header.injected else []
    return [
        f"{head.title.upper()}{badge}  {facts.name}",
        head.summary,
        *injected,
        *(f"  {question}\n    {answer}" for question, answer in head.answers),
    ]


def _figures(facts: Facts, change: Change | None) -> list[str]:
    return [f"  {tile.label:<20}{tile.value:>8} {tile.unit:<11} {tile.note}".rstrip() for tile in tiles(facts, change)]


def _timeline(facts: Facts) -> list[str]:
    found = marks(facts)
    return ["Timeline (iteration)", *(f"  {mark.iteration:>6}  {mark.title:<15} {mark.text}" for mark in found)] if found else []


def _ranks(facts: Facts) -> list[str]:
    compared = windows(facts)
    rows, _ = grid(facts, slowdowns(facts, compared))
    worst = sorted(rows, key=lambda row: -max((c.slowdown if c.slowdown == c.slowdown else 0.0 for c in row.cells), default=0.0))[:MAX_ROWS]
    lines = [
        f"Slowdown of each rank, iterations {compared.fault.first}-{compared.fault.end - 1} against its own {compared.healthy.first}-{compared.healthy.end - 1}"
    ]
    for row in sorted(worst, key=lambda row: (row.replica, row.stage)):
        cells = "  ".join(f"{'*' if c.suspect else ' '}{c.rank}: {ratio(c.slowdown)}" for c in row.cells[:MAX_CELLS])
        lines.append(f"  replica {row.replica} stage {row.stage}  {cells}{'  …' if len(row.cells) > MAX_CELLS else ''}")
    if len(rows) > MAX_ROWS:
        lines.append(f"  {len(rows) - MAX_ROWS} rows with faster ranks are not shown")
    return lines


def _change(change: Change | None) -> list[str]:
    if change is None:
        return []
    plan, done = change.plan, change.applied
    lines = [
        f"{'Changed' if done else 'Recommended'}: {change.text}",
        f"  predicted {ratio(plan.gain)}, measured {ratio(change.gain_measured)}; bound {seconds(plan.bound_s)}, the plan's time is {percent(plan.gap, signed=True)}, measured {percent(change.gap_measured, signed=True)}",
        f"  pause {seconds(done.pause_s if done else plan.pause_s)}, {size(done.bytes_moved if done else plan.bytes_moved)} moved",
    ]
    return [*lines, f"  why: {change.ladder}"] if change.ladder else lines


def _generations(found: list[Generation]) -> list[str]:
    """A line for each layout where there were more than one change and its way back."""
    if len(found) <= MOST_OBVIOUS:
        return []
    lines = []
    for g in found:
        split = "/".join(str(row.microbatches) for row in g.replicas)
        cost = "" if g.pause_s is None else f"; pause {seconds(g.pause_s)}, {size(g.bytes_moved or 0)} moved"
        lines.append(f"  {g.number:>3}  from iteration {g.iteration:<5} {split}{cost}")
    return ["Layouts (generation, micro-batches per replica)", *lines]


def _state(facts: Facts) -> list[str]:
    lines = state_lines(facts)
    return ["State of the training", *(f"  {line}" for line in lines)] if lines else []
