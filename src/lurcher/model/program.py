"""What every stage runs in an iteration, from the layout alone: all ranks and the predictor find the same without a word.

A micro-batch goes from leg to leg: layers on one stage, at home or, where a route says so, in another replica. A stage runs
its tasks in the order of its text: the schedule's own where all micro-batches stay at home, else that which the layout gives,
or what the list schedule makes of it. Which order is good depends on the stages' pace: with a stage at half speed the order made
for its own rates takes up to a fifth less time than one made for equal ones. So who adopts a routed layout calls `ordered`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec

from lurcher.layout import Layout
from lurcher.model.price import routed_texts
from lurcher.model.rates import Rates
from lurcher.model.routes import Coupled, all_replicas, compile_routed
from lurcher.model.schedule import ActionKind, parse, schedule_text
from lurcher.model.stage_table import stage_table

ALIKE = Rates(forward_s=1.0, backward_s=2.0)
"""Layers of equal cost on devices of equal speed. Measured rates would differ from rank to rank, and so would the texts."""


class Leg(NamedTuple):
    """Layers `first` .. `end - 1` of a micro-batch on a stage of a replica; `number` counts its visits there from 0."""

    replica: int
    stage: int
    first: int
    end: int
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """(replica, stage)."""
        return self.replica, self.stage

    @property
    def num_layers(self) -> int:
        """How many layers it runs."""
        return self.end - self.first


class Task(NamedTuple):
    """An action on a global micro-batch: the leg it runs, and the legs before and behind it (None at the model's ends)."""

    kind: ActionKind
    microbatch: int
    leg: Leg
    before: Leg | None
    behind: Leg | None


class Joint(NamedTuple):
    """Replicas that run as one, and the texts of their stages, as in `model/routes.py`: numbers are global micro-batches."""

    coupled: Coupled
    texts: tuple[str, ...]


def ordered(layout: Layout, rates: Rates, schedule: str) -> Layout:
    """The layout with the order of work that its price at these rates assumes; without routes it needs none."""
    texts = routed_texts(layout, rates, schedule) if layout.routes else {}
    return msgspec.structs.replace(layout, order=tuple(texts.get((d, s), "") for d, s, _ in layout.stages()) if texts else ())


def joints(layout: Layout, schedule: str) -> tuple[Joint, ...]:
    """All replicas with their texts. Raises UserError where the layout's order does not run each of its legs once, or could never end."""
    places = [(d, s) for d, s, _ in layout.stages()]
    texts = dict(zip(places, layout.order, strict=True)) if layout.order else routed_texts(layout, ALIKE, schedule) if layout.routes else {}
    found = []
    for coupled in all_replicas(layout, stage_table(layout, ALIKE)):
        if len(coupled.replicas) == 1:
            found.append(Joint(coupled, _at_home(layout, schedule, coupled.replicas[0])))
            continue
        joint = Joint(coupled, tuple(texts[coupled.place(stage)] for stage in coupled.stages))
        if layout.order:
            compile_routed(*joint)
        found.append(joint)
    return tuple(found)


def legs_of(coupled: Coupled) -> dict[int, tuple[Leg, ...]]:
    """The path of each micro-batch."""
    found = {}
    for microbatch, path in zip(coupled.microbatches, coupled.paths, strict=True):
        pieces = [(coupled.pieces[visit.piece], visit.number) for visit in path]
        found[microbatch] = tuple(Leg(*coupled.place(piece.stage), piece.first, piece.end, number) for piece, number in pieces)
    return found


def paths(layout: Layout) -> dict[int, tuple[Leg, ...]]:
    """The path of every micro-batch of the layout, by its global number."""
    return {m: path for coupled in all_replicas(layout, stage_table(layout, ALIKE)) for m, path in legs_of(coupled).items()}


def borders(layout: Layout) -> frozenset[tuple[tuple[int, int], tuple[int, int]]]:
    """The pairs of stages, each (replica, stage), that a forward pass crosses from the first to the second."""
    crossed = {both for path in set(paths(layout).values()) for both in pairwise(leg.place for leg in path)}
    return frozenset((a, b) for a, b in crossed if a != b)


def tasks(layout: Layout, schedule: str, replica: int, stage: int) -> tuple[Task, ...]:
    """What a stage runs in every iteration, in order."""
    for coupled, texts in joints(layout, schedule):
        if replica in coupled.replicas:
            text = next(text for number, text in zip(coupled.stages, texts, strict=True) if coupled.place(number) == (replica, stage))
            known = _by_visit(coupled, replica, stage)
            return tuple(Task(action.kind, action.microbatch, *known[action.microbatch, action.chunk]) for action in parse(text))
    raise KeyError(f"generation {layout.generation} has no replica {replica}")


def _by_visit(coupled: Coupled, replica: int, stage: int) -> dict[tuple[int, int], tuple[Leg, Leg | None, Leg | None]]:
    found = {}
    for microbatch, path in legs_of(coupled).items():
        for before, leg, behind in zip((None, *path[:-1]), path, (*path[1:], None), strict=True):
            if leg.place == (replica, stage):
                found[microbatch, leg.number] = (leg, before, behind)
    return found


def _at_home(layout: Layout, schedule: str, d: int) -> tuple[str, ...]:
    """The schedule's texts of a replica, with global numbers."""
    replica, first = layout.replicas[d], layout.microbatches_of(d).start
    texts = schedule_text(schedule, len(replica.stages), replica.microbatches, max(len(stage.chunks) for stage in replica.stages))
    return tuple(" ".join(str(a._replace(microbatch=first + a.microbatch)) for a in parse(text)) for text in texts)
