"""Which kind of change can answer which cause: one table, so that no generator proposes what cannot help."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from lurcher.records import Cause

CURES = MappingProxyType[str, frozenset[Cause]](
    {
        "split": frozenset({"compute", "host"}),  # a slow link costs the same after any split
        "migrate": frozenset({"compute", "host"}),
        "relayer": frozenset({"compute", "host", "stage_imbalance"}),
        "tensor": frozenset({"compute", "host"}),
        "swap": frozenset({"communication"}),  # healthy links cannot make a slow device faster
        "consolidate": frozenset({"compute", "host", "communication"}),
        "standby": frozenset({"compute", "host", "communication"}),
        "restart": frozenset({"compute", "host", "communication", "unknown"}),
    }
)
"""Kinds of `records.Action` and the causes whose cost they can lower. Input, workload and sequence imbalance have no answer here:
no other layout changes what they cost. `keep` and `readmit` answer no fault and stand outside."""
REVIVES = frozenset({"tensor", "standby", "restart"})
"""Kinds that take work from dead ranks: nothing else helps as long as one has some, whatever the cause is. `dead.py` combines them."""


def answers(kind: str, causes: Iterable[Cause]) -> bool:
    """Whether a change of this kind can lower the cost of at least one of the causes."""
    return not CURES[kind].isdisjoint(causes)
