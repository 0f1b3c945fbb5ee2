"""Replicas whose pipelines are one, because micro-batches of the one run stages of the other: their paths, and their texts.

In these texts the numbers are GLOBAL micro-batches, for guests stand beside a stage's own; where a micro-batch comes to a
stage more than once, the later visits stand as its chunks 1, 2, ... (`1F7`). All else is as in `model/schedule.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.model.order import Order, in_order
from lurcher.model.schedule import KINDS, Action, parse
from lurcher.model.stage_table import StageTable


class Piece(NamedTuple):
    """Layers `first` .. `end - 1` on a stage (its number in the `StageTable`); `row` is the chunk that they are part of."""

    stage: int
    first: int
    end: int
    row: int


class Visit(NamedTuple):
    """One piece of a micro-batch's path: what runs, over which border its input comes (-1 none), and the how manieth at this stage."""

    piece: int
    border: int
    number: int


@dataclass(frozen=True, eq=False)
class Coupled:
    """Replicas joined by routes, and all their micro-batches, each with its path through the layers."""

    replicas: tuple[int, ...]
    stages: tuple[int, ...]  # of the replicas, numbered as in the `StageTable`
    first_stages: tuple[int, ...]  # of each replica
    microbatches: tuple[int, ...]  # global
    homes: tuple[int, ...]  # replica of each
    pieces: tuple[Piece, ...]
    borders: tuple[tuple[int, int], ...]  # between stages, as the forward pass crosses them
    paths: tuple[tuple[Visit, ...], ...]  # per micro-batch

    def place(self, stage: int) -> tuple[int, int]:
        """(replica, stage of it) of a stage by its number."""
        at = bisect_right(self.first_stages, stage) - 1
        return self.replicas[at], stage - self.first_stages[at]


def coupled_replicas(layout: Layout, table: StageTable) -> tuple[Coupled, ...]:
    """The groups of replicas that the layout's routes join; none without routes."""
    home = _homes(layout)
    return tuple(_couple(layout, table, members, home) for members in _joined(layout, home) if len(members) > 1)


def all_replicas(layout: Layout, table: StageTable) -> tuple[Coupled, ...]:
    """Every replica: the groups that routes join, and those that run alone."""
    home = _homes(layout)
    return tuple(_couple(layout, table, members, home) for members in _joined(layout, home))


def _homes(layout: Layout) -> list[int]:
    """Replica of every global micro-batch."""
    return [d for d, replica in enumerate(layout.replicas) for _ in range(replica.microbatches)]


def _joined(layout: Layout, home: Sequence[int]) -> list[tuple[int, ...]]:
    leader = list(range(len(layout.replicas)))

    def lead(d: int) -> int:
        while leader[d] != d:
            d = leader[d]
        return d

    for route in layout.routes:
        leader[max(lead(home[route.microbatch]), lead(route.replica))] = min(lead(home[route.microbatch]), lead(route.replica))
    groups: dict[int, list[int]] = {}
    for d in range(len(layout.replicas)):
        groups.setdefault(lead(d), []).append(d)
    return [tuple(members) for members in groups.values()]


def _couple(layout: Layout, table: StageTable, members: tuple[int, ...], home: Sequence[int]) -> Coupled:
    microbatches = tuple(m for m, d in enumerate(home) if d in members)
    pieces: dict[Piece, int] = {}
    borders: dict[tuple[int, int], int] = {}
    plain: dict[int, tuple[Visit, ...]] = {}
    routed: dict[int, list[Piece]] = {}
    for route in sorted(layout.routes):
        stage = int(table.first_stages[route.replica]) + route.stage
        rows = range(table.first_rows[route.replica], table.first_rows[route.replica + 1])
        row = next(row for row in rows if route.chunk.first in table.ranges[row])
        routed.setdefault(route.microbatch, []).append(Piece(stage, route.chunk.first, route.chunk.end, row))
    paths = []
    for m in microbatches:
        if m not in routed and home[m] in plain:
            paths.append(plain[home[m]])
            continue
        path = _visits(_path(table, home[m], routed.get(m, [])), pieces, borders)
        paths.append(path)
        if m not in routed:
            plain[home[m]] = path
    firsts = tuple(int(table.first_stages[d]) for d in members)
    stages = tuple(stage for d in members for stage in range(table.first_stages[d], table.first_stages[d + 1]))
    return Coupled(members, stages, firsts, microbatches, tuple(home[m] for m in microbatches), tuple(pieces), tuple(borders), tuple(paths))


def _path(table: StageTable, d: int, routed: Sequence[Piece]) -> list[Piece]:
    """A micro-batch's pieces in order of layers: where no route takes them, the home's."""
    found: list[Piece] = []
    layer = 0
    for row in range(table.first_rows[d], table.first_rows[d + 1]):
        chunk, stage = table.ranges[row], int(table.row_stages[row])
        layer = max(layer, chunk.first)
        while layer < chunk.end:
            away = next((piece for piece in routed if piece.first <= layer < piece.end), None)
            if away is not None:
                found.append(away)
            else:
                until = min([chunk.end, *(piece.first for piece in routed if piece.first > layer)])
                found.append(Piece(stage, layer, until, row))
            layer = found[-1].end
    return found


def _visits(path: Sequence[Piece], pieces: dict[Piece, int], borders: dict[tuple[int, int], int]) -> tuple[Visit, ...]:
    found: list[Visit] = []
    seen: dict[int, int] = {}
    for i, piece in enumerate(path):
        before = path[i - 1].stage if i else piece.stage
        border = borders.setdefault((before, piece.stage), len(borders)) if before != piece.stage else -1
        number = seen[piece.stage] = seen.get(piece.stage, -1) + 1
        found.append(Visit(pieces.setdefault(piece, len(pieces)), border, number))
    return tuple(found)


def compile_routed(coupled: Coupled, texts: Sequence[str]) -> Order:
    """The texts of the coupled stages, in the order of `coupled.stages`, made ready for `critical_path`.

    The order's rows are the pieces, its micro-batches and borders those of `coupled`. Raises UserError for an action that is
    not on its micro-batch's path, one that is missing or there twice, and one that can never run.
    """
    num, size = len(coupled.microbatches), len(coupled.pieces) * len(coupled.microbatches)
    num_borders = len(coupled.borders)
    sources, borders = [-1] * (3 * size), [num_borders] * (3 * size)
    known: dict[tuple[int, int, int], int] = {}  # stage, micro-batch, chunk: its forward step
    for i, path in enumerate(coupled.paths):
        for k, visit in enumerate(path):
            code = visit.piece * num + i
            known[coupled.pieces[visit.piece].stage, coupled.microbatches[i], visit.number] = code
            sources[size + code], sources[2 * size + code] = code, size + code
            if k:
                before = path[k - 1].piece * num + i
                sources[code], borders[code] = before, visit.border
                sources[size + before], borders[size + before] = size + code, visit.border
    todo = [[_code(known, size, stage, action) for action in parse(text)] for stage, text in zip(coupled.stages, texts, strict=True)]

    def name(code: int) -> str:
        kind, rest = divmod(code, size)
        stage, microbatch, chunk = next(key for key, forward in known.items() if forward == rest)
        return "{} of replica {} stage {}".format(Action(KINDS[kind], microbatch, chunk), *coupled.place(stage))

    _check_once(todo, known.values(), size, name)
    durations, levels = in_order(todo, sources, borders, size, name)
    places = tuple((coupled.stages.index(piece.stage), 0) for piece in coupled.pieces)
    return Order(len(coupled.stages), len(coupled.pieces), num, num_borders, durations, levels, places)


def _code(known: dict[tuple[int, int, int], int], size: int, stage: int, action: Action) -> int:
    forward = known.get((stage, action.microbatch, action.chunk))
    if forward is None:
        raise UserError(f"{action} is not on the path of micro-batch {action.microbatch}: the layout's routes lead it elsewhere")
    return KINDS.index(action.kind) * size + forward


def _check_once(todo: Sequence[Sequence[int]], forwards: Iterable[int], size: int, name: Callable[[int], str]) -> None:
    counts = Counter(code for codes in todo for code in codes)
    kinds = 3 if any(code >= 2 * size for code in counts) else 2
    for code in (kind * size + forward for forward in forwards for kind in range(kinds)):
        if counts[code] != 1:
            raise UserError(f"the routed schedule runs {name(code)} {counts[code]} times; every action is run once")
