"""Every value that crosses a border between two folders. Frozen, with units in the names; batches are numpy arrays.

Single values are msgspec structs, so they save and load as JSON. Series are structured arrays, one row a record.
`slowdown` is observed / expected everywhere: 1.0 is healthy, 1.5 takes half as long again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

import msgspec
import numpy as np

from lurcher.layout import Layout


class Op(IntEnum):
    """What an event records. Communication first; from FORWARD on it is the rank's own work."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    BROADCAST = 3
    ALL_TO_ALL = 4
    SEND = 5
    RECV = 6
    BARRIER = 7
    COMMIT_WAIT = 8  # from the acknowledgement to the sealed decision
    FORWARD = 16  # chunks: `seq` is the global micro-batch, `peer` the chunk's index in its stage
    BACKWARD = 17
    WEIGHT = 18
    INPUT = 19
    OPTIMIZER = 20
    PAUSE = 21  # validation or reconfiguration at an iteration border: no part of an iteration


GROUP_KINDS = ("tp", "dp", "pp", "world")
"""Kinds of groups whose transfer time is told apart; anything else counts as world."""

EVENT = np.dtype(
    [
        ("rank", "<i4"),
        ("group", "<i4"),  # Group.id of the layout's generation; -1 for the rank's own work
        ("op", "u1"),
        ("dtype", "u1"),  # bytes per element; 0 unknown
        ("peer", "<i4"),  # the other rank of a send or receive; -1 none
        ("seq", "<i8"),  # number of the call within its group; global micro-batch for chunks
        ("num_bytes", "<i8"),
        ("start_ns", "<i8"),  # monotonic clock of the host; never compared between hosts
        ("end_ns", "<i8"),
        ("device_ns", "<i8"),  # 0 = unknown
    ]
)
"""One row an operation of one rank."""

WORKLOAD = np.dtype([("iteration", "<i8"), ("microbatch", "<i4"), ("num_tokens", "<i4"), ("sum_len_sq", "<i8")])
"""One row a global micro-batch: how many tokens, and the sum of squared document lengths (attention work)."""

ITERATION = np.dtype(
    [
        ("index", "<i8"),
        ("rank", "<i4"),
        ("start_ns", "<i8"),
        ("duration_s", "<f8"),  # acknowledgement to acknowledgement, pauses taken out
        ("busy_s", "<f8"),  # own work: chunks without their collectives, optimizer, engine
        ("wait_s", "<f8"),  # waiting for others, in any group
        ("transfer_tp_s", "<f8"),
        ("transfer_dp_s", "<f8"),
        ("transfer_pp_s", "<f8"),
        ("transfer_world_s", "<f8"),
        ("input_s", "<f8"),
        ("host_s", "<f8"),
        ("num_tokens", "<i8"),  # of the micro-batches this rank worked on
        ("sum_len_sq", "<i8"),
        ("expected_s", "<f8"),  # what the whole job's iteration should have taken; NaN while the model is not fitted
    ]
)
"""One row a rank and iteration."""

CHUNK = np.dtype(
    [
        ("rank", "<i4"),
        ("microbatch", "<i4"),  # global
        ("phase", "u1"),  # Op.FORWARD, BACKWARD or WEIGHT
        ("busy_s", "<f8"),  # own work: the chunk without its collectives
        ("wait_s", "<f8"),  # inside its collectives, waiting for mates
        ("transfer_s", "<f8"),  # inside its collectives, with everybody there
        ("gap_s", "<f8"),  # engine time before the chunk, since the rank's last chunk ended, not spent receiving
    ]
)
"""One row a rank, micro-batch and phase: what the expected-time model learns from. Stays on the node of its rank."""


TRANSFER = np.dtype(
    [
        ("kind", "u1"),  # position in GROUP_KINDS; a pair of stages that pass activations counts as pp
        ("a", "<i4"),  # Group.id of the layout, or the lower rank of a pair
        ("b", "<i4"),  # the higher rank of a pair; -1 for a group
        ("seconds", "<f8"),  # of one call, with everybody there
        ("num_bytes", "<i8"),  # of one call
        ("count", "<i4"),  # calls an iteration, one way
    ]
)
"""One row a group or pair of ranks and iteration: how long what passes between them takes, waiting taken off."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a rank runs: every verdict names host and device beside the rank."""

    rank: int
    host: str
    local_rank: int = 0
    device: str = "cpu"
    pci_bus: str = ""
    nic: str = ""


Cause = Literal["compute", "communication", "input", "host", "workload", "stage_imbalance", "sequence_imbalance", "unknown"]
ComponentKind = Literal["rank", "link", "node", "stage", "group"]


class Component(msgspec.Struct, frozen=True):
    """A part of the job that can be slow. `ranks` is sorted; empty where the input names none."""

    kind: ComponentKind
    id: str
    ranks: tuple[int, ...] = ()

    @classmethod
    def of_rank(cls, rank: int) -> Component:
        """The component that is one rank."""
        return cls("rank", str(rank), (rank,))


class ChangePoint(msgspec.Struct, frozen=True):
    """The series changed its level. `iteration` estimates the first changed one; `detected_iteration` is the one that showed it."""

    iteration: int
    detected_iteration: int
    before_s: float
    after_s: float
    slowdown: float
    direction: Literal["slower", "faster"]
    tier: Literal["suspect", "confirmed"]
    detector: str
    score: float


class Suspicion(msgspec.Struct, frozen=True):
    """A component that may be the culprit; `confidence` 0..1; `evidence` are sentences."""

    component: Component
    cause: Cause
    slowdown: float
    confidence: float
    evidence: tuple[str, ...] = ()


class BenchResult(msgspec.Struct, frozen=True):
    """One benchmark of one component at one moment: the median of its repeats, in `unit` (lower is better)."""

    component: Component
    name: str
    measured: float
    num_repeats: int
    unit: str = "s"


class Finding(msgspec.Struct, frozen=True):
    """A suspicion put to the test. `slowdown` = measured / baseline; `proven` says whether the test bore it out."""

    component: Component
    cause: Cause
    slowdown: float
    measured: float
    baseline: float
    unit: str
    num_repeats: int
    validated_by: Literal["device", "emulated"]
    proven: bool
    reason: str


class Action(msgspec.Struct, frozen=True):
    """One change of a plan, e.g. kind "split", with a sentence that says it in words."""

    kind: Literal["keep", "split", "migrate", "relayer", "tensor", "swap", "consolidate", "standby", "readmit", "restart"]
    text: str


class Plan(msgspec.Struct, frozen=True):
    """A layout to go to, what it should bring and what it costs. Times are seconds per iteration; `pause_s` is once."""

    layout: Layout
    actions: tuple[Action, ...]
    present_s: float
    predicted_s: float
    bound_s: float
    pause_s: float
    bytes_moved: int
    reason: str

    @property
    def gap(self) -> float:
        """How far the plan stays above the bound, as a fraction."""
        return self.predicted_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0

    @property
    def gain(self) -> float:
        """Predicted throughput over the present layout's."""
        return self.present_s / self.predicted_s if self.predicted_s > 0 else 1.0


class Reconfiguration(msgspec.Struct, frozen=True):
    """A plan carried out. `iteration` is the first one that ran on the new layout."""

    plan: Plan
    generation: int
    iteration: int
    pause_s: float
    bytes_moved: int
    outcome: Literal["applied", "reverted", "refused", "failed"]
    reason: str


class Decision(msgspec.Struct, frozen=True):
    """One line of decisions.jsonl: what was decided after which iteration, why, and the value it is about."""

    iteration: int
    time_s: float  # since the run began
    kind: Literal["state", "change_point", "suspicion", "bench", "finding", "plan", "ladder", "reconfiguration", "fault", "note"]
    reason: str
    value: Any = None
