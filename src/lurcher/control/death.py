"""Which layout a job goes on with when ranks are gone, and from which state. Pure: what it may choose from comes from the planner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from lurcher.config import ModelSection
from lurcher.control.advice import is_adoptable
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.model.program import ordered
from lurcher.model.rates import Rates
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.situation import assess, keep
from lurcher.plan.words import rank_words
from lurcher.records import Plan
from lurcher.runtime.copies import moves_back
from lurcher.runtime.messages import Cut
from lurcher.runtime.owners import Slice, cut_slices
from lurcher.runtime.shapes import check_model, tensor_specs
from lurcher.runtime.transfer import STATES, Move, least_moves, without

UNMEASURED = Rates(forward_s=1e-3, backward_s=2e-3)
"""What a layer takes as long as nothing was measured: of plans that only differ in who works, their order is the same for any."""
MovesTo = Callable[[Sequence[Slice]], Sequence[Move]]
"""What gets the state to the owners of these slices; LurcherError where nothing can."""


class Way(NamedTuple):
    """How to go on: `plan` None to end the job, `cut` what all go back to, None for the present state. `reason` is a sentence in either case."""

    plan: Plan | None
    cut: Cut | None
    reason: str


def way_on(
    model: ModelSection,
    layout: Layout,
    lost: Collection[int],
    rates: Rates,
    schedule: str,
    iteration: int,
    cut: Cut | None,
    *,
    element_bytes: int = 4,
) -> Way:
    """The fastest plan for the ranks that are left: from the present state, or if they do not hold all of it, from the last cut.

    Only what the engine carries out, and what the survivors hold the state for. `iteration` is the first one that does not count; the cut has
    fewer, and those in between are computed again. `element_bytes` is the size of an element of the state.
    """
    plans = _plans(model, layout, lost, rates, schedule)
    plan, refused = _first(model, plans, _present(model, layout, lost), element_bytes)
    if plan is not None:
        return Way(plan, None, plan.reason)
    gone = _gone(model, layout, lost)
    if cut is None or not gone:
        return Way(None, None, refused)
    plan, refused_too = _first(model, plans, _from_cut(model, layout, lost, cut), element_bytes)
    if plan is None:
        return Way(None, None, f"{refused}; {refused_too}")
    return Way(plan, cut, f"{'; '.join(action.text for action in plan.actions)}; {gone}, so {_say_back(iteration, cut)}")


def _plans(model: ModelSection, layout: Layout, lost: Collection[int], rates: Rates, schedule: str) -> list[Plan]:
    """What the planner proposes, best first, without the lost ranks on standby."""
    rates = msgspec.structs.replace(rates, dead=tuple(sorted(lost)))
    situation = assess(layout, rates, schedule=schedule, num_atoms=model.num_kv_heads)
    plans = propose_without_dead(situation)
    if not situation.dead_at_work():
        plans = (keep(situation, f"{rank_words(sorted(lost))} stood by: the work goes on as before"),)
    found = []
    for plan in plans:
        standby = tuple(rank for rank in plan.layout.standby if rank not in lost)
        layout = ordered(msgspec.structs.replace(plan.layout, standby=standby), rates, schedule)
        found.append(msgspec.structs.replace(plan, layout=layout))
    return found


def _first(model: ModelSection, plans: Sequence[Plan], moves_to: MovesTo, element_bytes: int) -> tuple[Plan | None, str]:
    """The first plan that can be carried out, or why the last one cannot."""
    refused = "no layout of the ranks that are left holds the whole model"
    for plan in plans:
        moves, refused = _moves(model, plan.layout, moves_to)
        if not refused:
            sizes = {spec.name: spec.atom_size for spec in tensor_specs(model)}
            num_elements = sum((move.piece.end - move.piece.first) * sizes[move.piece.tensor] for move in moves)
            return msgspec.structs.replace(plan, bytes_moved=num_elements * len(STATES) * element_bytes), ""
    return None, refused


def _present(model: ModelSection, layout: Layout, lost: Collection[int]) -> MovesTo:
    before = without(cut_slices(model, layout), lost)
    sizes = {spec.name: spec.atom_size for spec in tensor_specs(model)}
    return lambda after: least_moves(before, after, sizes)


def _from_cut(model: ModelSection, layout: Layout, lost: Collection[int], cut: Cut) -> MovesTo:
    """Ranks that left before, between the cut and now, have nothing of it either."""
    gone = {*lost, *set(cut.layout.members) - set(layout.members)}
    return lambda after: moves_back(cut, model, gone, after)


def _moves(model: ModelSection, layout: Layout, moves_to: MovesTo) -> tuple[Sequence[Move], str]:
    """What has to move for a layout; and why it cannot be carried out, empty if it can."""
    if not is_adoptable(layout):
        return (), "the engine runs one range of layers a stage"
    try:
        check_model(model, layout)
        return moves_to(cut_slices(model, layout)), ""
    except LurcherError as error:
        return (), str(error)


def _gone(model: ModelSection, layout: Layout, lost: Collection[int]) -> str:
    """What had its last owners among the lost, in words; empty where the survivors hold the whole model."""
    missing = [piece for piece in cut_slices(model, layout) if set(piece.owners) <= set(lost)]
    if not missing:
        return ""
    return f"the last owners of {missing[0].name}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''} are gone"


def _say_back(iteration: int, cut: Cut) -> str:
    again = iteration - cut.iteration
    many = f"{again} iterations are" if again != 1 else "1 iteration is"
    return f"all go back to iteration {cut.iteration}, of which every rank kept a copy: {many} computed again"
