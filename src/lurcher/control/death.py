"""Which layout a job goes on with when ranks are gone. Pure: what it may choose from comes from the planner."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from lurcher.config import ModelSection
from lurcher.control.advice import is_adoptable
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.situation import assess
from lurcher.records import Plan
from lurcher.runtime.owners import Slice, cut_slices
from lurcher.runtime.shapes import check_model, tensor_specs
from lurcher.runtime.transfer import least_moves, without

UNMEASURED = Rates(forward_s=1e-3, backward_s=2e-3)
"""What a layer takes as long as nothing was measured: of plans that only differ in who works, their order is the same for any."""


def plan_without(model: ModelSection, layout: Layout, lost: Collection[int], rates: Rates, schedule: str) -> tuple[Plan | None, str]:
    """The fastest plan for the ranks that are left, and why it; or None and why the job must end.

    Only what the engine carries out, and what the survivors hold the state for: their own, or that of another owner.
    """
    rates = msgspec.structs.replace(rates, dead=tuple(sorted(lost)))
    before = without(cut_slices(model, layout), lost)
    refused = ""
    for plan in propose_without_dead(assess(layout, rates, schedule=schedule, num_atoms=model.num_kv_heads)):
        found = msgspec.structs.replace(plan.layout, standby=tuple(rank for rank in plan.layout.standby if rank not in lost))
        refused = _refusal(model, before, found)
        if not refused:
            return msgspec.structs.replace(plan, layout=found), plan.reason
    return None, refused or "no layout of the ranks that are left holds the whole model"


def _refusal(model: ModelSection, before: Sequence[Slice], layout: Layout) -> str:
    """Why a layout cannot be carried out; empty if it can."""
    if not is_adoptable(layout):
        return "the engine runs every micro-batch at home"
    try:
        check_model(model, layout)
        least_moves(before, cut_slices(model, layout), {spec.name: spec.atom_size for spec in tensor_specs(model)})
    except LurcherError as error:
        return str(error)
    return ""
