"""How long a rank may wait to hear of its supervisor before it must take itself for given up."""

from __future__ import annotations

MARGIN_S = 5.0
"""What a supervisor that cannot end a process waits beyond its lease, before it goes on without it."""


def lease_s(step_deadline_s: float) -> float:
    """Longer than the supervisor's patience with a rank: it sees all of them and names the one that hangs, a waiter only sees its neighbour."""
    return 2.0 * step_deadline_s + 5.0
