"""A schedule's text made ready for walking: its steps in topological order, level by level.

ResiHP eq. 2: a chunk starts when its data has come and its stage is free. Along the pipeline the rows are the chunks in the
order of their layers: chunk c of stage s of P is row c * P + s, so without interleaving a row is a stage. F of row r needs
F of row r - 1, B of row r needs B of row r + 1 and its own F, W needs its own B; each stage works through its text in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.errors import UserError
from lurcher.model.schedule import KINDS, Action, ActionKind, parse_all

Ints = NDArray[np.intp]


class Step(NamedTuple):
    """One action of one stage."""

    stage: int
    kind: ActionKind
    microbatch: int
    chunk: int = 0


@dataclass(frozen=True, eq=False)
class Level:
    """Steps `first` .. `end - 1`, which depend on earlier levels only. Row 0 of the end times is "from the start"."""

    first: int
    end: int
    after: Ints  # row of the stage's previous step
    needs: Ints  # row of the step that sends the data
    hops: Ints  # border that the data crosses: i is between rows i and i + 1 of the pipeline; `num_borders` is none


@dataclass(frozen=True, eq=False)
class Order:
    """A schedule made ready for walking: its steps in topological order. Depends on the texts only, so callers keep it.

    `num_rows` is the number of chunks along the pipeline: stages times chunks per stage.
    """

    num_stages: int
    num_rows: int
    num_microbatches: int
    num_borders: int
    durations: Ints  # index of each step's duration in the (kind, row, micro-batch) array, flattened
    levels: tuple[Level, ...]
    row_places: tuple[tuple[int, int], ...]  # stage and chunk of each row

    @property
    def has_weight(self) -> bool:
        """Whether the backward pass is split."""
        return bool((self.durations >= 2 * self.num_rows * self.num_microbatches).any())

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in the order of the end times."""
        found = []
        for code in self.durations.tolist():
            row, microbatch = divmod(code, self.num_microbatches)
            kind, row = divmod(row, self.num_rows)
            stage, chunk = self.row_places[row]
            found.append(Step(stage, KINDS[kind], microbatch, chunk))
        return tuple(found)

    def rows(self, kind: ActionKind) -> Ints:
        """Index into `steps` of every (row, micro-batch) of a kind, shape (rows, m)."""
        size = self.num_rows * self.num_microbatches
        found = np.zeros(3 * size, dtype=np.intp)
        found[self.durations] = np.arange(len(self.durations))
        first = KINDS.index(kind) * size
        return found[first : first + size].reshape(self.num_rows, self.num_microbatches)


def compile_schedule(texts: Sequence[str]) -> Order:
    """Put the texts' actions into topological order. Raises UserError for an action that can never run, by its name."""
    actions = parse_all(texts)
    num_rows, num_microbatches = _check_complete(actions)
    num_stages, size = len(texts), num_rows * num_microbatches
    different = set(itertools.chain.from_iterable(actions))
    first_row = {a: (KINDS.index(a.kind) * num_rows + a.chunk * num_stages) * num_microbatches + a.microbatch for a in different}

    def name(code: int) -> str:
        kind, row = divmod(code // num_microbatches, num_rows)
        return f"{Action(KINDS[kind], code % num_microbatches, row // num_stages)} of stage {row % num_stages}"

    forward = np.arange(size)
    row = forward // max(num_microbatches, 1)
    from_above = np.where(row < num_rows - 1, size + forward + num_microbatches, forward)
    sources = np.concatenate([np.where(row > 0, forward - num_microbatches, -1), from_above, size + forward])
    none = np.full(size, num_rows - 1)
    borders = np.concatenate([np.where(row > 0, row - 1, num_rows - 1), row, none])
    todo = [[first_row[action] + stage * num_microbatches for action in words] for stage, words in enumerate(actions)]
    durations, levels = in_order(todo, sources.tolist(), borders.tolist(), size, name)
    places = tuple((row % num_stages, row // num_stages) for row in range(num_rows))
    return Order(num_stages, num_rows, num_microbatches, num_rows - 1, durations, levels, places)


def in_order(
    todo: Sequence[Sequence[int]], sources: Sequence[int], borders: Sequence[int], size: int, name: Callable[[int], str]
) -> tuple[Ints, tuple[Level, ...]]:
    """The steps of all stages in topological order, and their levels.

    A step is its index in the (kind, row, micro-batch) array of durations, flattened, of `size` a kind. `todo` are the stages'
    steps in the order of their texts, `sources` the step whose data each needs (-1 none) and `borders` where it crosses.
    Raises UserError, with a step's `name`, where none can run.
    """
    num_codes = sum(len(codes) for codes in todo)
    rows = [0] * (3 * size)  # row of each step that is done
    durations: list[int] = []
    after: list[int] = []
    needs: list[int] = []
    firsts = [0]
    position = [0] * len(todo)
    last_row = [0] * len(todo)
    while len(durations) < num_codes:
        ready = []
        for stage, codes in enumerate(todo):
            if position[stage] == len(codes):
                continue
            code = codes[position[stage]]
            source = sources[code]
            if (source < 0 or rows[source]) and (code < size or rows[code - size]):  # and B after F, W after B of the same row
                ready.append(stage)
                durations.append(code)
                after.append(last_row[stage])
                needs.append(rows[source] if source >= 0 else 0)
        if not ready:
            stage, code = next((s, codes[position[s]]) for s, codes in enumerate(todo) if position[s] < len(codes))
            missing = code - size if sources[code] < 0 or rows[sources[code]] else sources[code]
            raise UserError(
                f"the schedule deadlocks: {name(code)} waits for {name(missing)}, which never runs before it; reorder the two stages' texts"
            )
        for row, stage in enumerate(ready, firsts[-1]):
            rows[durations[row]] = last_row[stage] = row + 1
            position[stage] += 1
        firsts.append(len(durations))
    found = np.array(durations, dtype=np.intp)
    arrays = np.array(after, dtype=np.intp), np.array(needs, dtype=np.intp), np.array(borders, dtype=np.intp)[found]
    return found, tuple(Level(a, b, *(array[a:b] for array in arrays)) for a, b in itertools.pairwise(firsts))


def _check_complete(actions: Sequence[tuple[Action, ...]]) -> tuple[int, int]:
    """Rows and micro-batches; every stage must run F and B of each micro-batch and chunk once, and W of all or of none."""
    different = set(itertools.chain.from_iterable(actions))
    num_microbatches = max((action.microbatch + 1 for action in different), default=0)
    num_chunks = max((action.chunk + 1 for action in different), default=1)
    kinds = KINDS if any(action.kind == "W" for action in different) else KINDS[:2]
    every = {Action(kind, m, chunk) for kind in kinds for m in range(num_microbatches) for chunk in range(num_chunks)}
    for stage, words in enumerate(actions):
        found = set(words)
        if len(found) < len(words):
            twice = next(action for action in words if words.count(action) > 1)
            raise UserError(f"stage {stage} of the schedule runs {twice} twice; each action is run once")
        if len(found) < len(every):
            raise UserError(f"stage {stage} of the schedule never runs {min(every - found)}; every stage runs every micro-batch")
    return len(actions) * num_chunks, num_microbatches
