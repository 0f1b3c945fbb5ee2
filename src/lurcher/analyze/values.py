"""The values of verdict.json, key for key and in the file's order. Unknown keys of newer writers are ignored on reading."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from lurcher.layout import Layout
from lurcher.records import Action, Cause, ComponentKind, Place, Reconfiguration

SCHEMA = "lurcher/verdict/1"
LIST_SCHEMA = "lurcher/verdicts/1"
PLAN_SCHEMA = "lurcher/plan/1"

VerdictKind = Literal["healthy", "fail_slow", "fail_stop", "not_hardware", "inconclusive"]
EventKind = Literal["fail_slow", "burst", "drift", "level_shift", "restart", "fail_stop", "hang"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers come from: a file or run directory, the format it was read as, and how much there was."""

    path: str
    format: str
    num_iterations: int
    num_ranks: int


class SuspectComponent(msgspec.Struct, frozen=True, kw_only=True):
    """A component with the places of its ranks, so that host and device stand beside the rank."""

    kind: ComponentKind
    id: str
    ranks: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """One culprit of an event; `slowdown` is the component's own, the event's is the iteration's."""

    component: SuspectComponent
    cause: Cause
    slowdown: float
    confidence: float


class VerdictEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One contiguous period, in the input's own iteration numbers. `end_iteration` is the last slow one, None while it lasts.

    `detected_iteration` is the one whose completion confirmed the change online. `lost_s` sums observed - expected.
    `validated`: a benchmark of the component bore the suspicion out; the evidence says on what it ran.
    """

    kind: EventKind
    onset_iteration: int
    end_iteration: int | None
    detected_iteration: int
    slowdown: float
    lost_s: float
    cause: Cause
    suspects: tuple[Suspect, ...] = ()
    validated: bool = False
    evidence: tuple[str, ...] = ()


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """The layout in force when plans were made, with its predicted seconds per iteration."""

    predicted_s: float
    layout: Layout


class PlanEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One plan: seconds per iteration predicted and at the bound, the distance as a fraction, and what the change costs once.

    `bound_s` and `gap` are None where no bound is known.
    """

    predicted_s: float
    bound_s: float | None
    gap: float | None
    pause_s: float
    bytes_moved: int
    layout: Layout
    actions: tuple[Action, ...]
    reason: str


class PlanSet(msgspec.Struct, frozen=True, kw_only=True):
    """The `plan` section: the present layout and what could be put in its place, best first."""

    schema: str = PLAN_SCHEMA
    present: Present | None = None
    plans: tuple[PlanEntry, ...] = ()


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Iterations per minute by phase; None where the phase did not happen."""

    healthy_iter_per_min: float | None = None
    slow_iter_per_min: float | None = None
    mitigated_iter_per_min: float | None = None
    recovered_iter_per_min: float | None = None


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping copies of the state cost: how many, the seconds that one paused the training (median) and their share of all time, and the memory of
    the rank that gives most and of all ranks."""

    num: int
    pause_s: float
    share: float
    most_bytes: int
    total_bytes: int


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The job held against the same training by one process without faults: largest relative errors over all iterations, and of the state in the end."""

    same: bool
    num_iterations: int
    tolerance: float
    loss_error: float
    norm_error: float
    state_errors: dict[str, float]
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """verdict.json, and what `--json` prints."""

    schema: str = SCHEMA
    source: Source
    verdict: VerdictKind
    summary: str
    events: tuple[VerdictEvent, ...] = ()
    what_if: dict[str, Any] | None = None
    plan: PlanSet | None = None
    reconfigurations: tuple[Reconfiguration, ...] = ()
    throughput: Throughput = Throughput()
    copies: Copies | None = None
    verification: Verification | None = None
    wall_s: float = 0.0
