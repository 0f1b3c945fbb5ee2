"""What a running job and those around it agree on: who watches it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The job as it stands after one iteration: what a live display shows."""

    iteration: int
    num_iterations: int
    iterations_per_min: float
    loss: float
    state: str
    """The coordinator's state in words: observe, suspect, validate, mitigate."""
    reason: str
    """Why it is in that state: a sentence."""
    split: tuple[int, ...]
    """Micro-batches per replica."""
    phase: str = ""
    """What is going on between iterations, such as `starting ranks`; empty while it trains."""


class Watch(Protocol):
    """Somebody who is told how the job goes. It decides nothing, and must return at once."""

    def update(self, snapshot: Snapshot) -> None:
        """One iteration more, or another phase of the same one."""
        ...

    def note(self, reason: str) -> None:
        """A decision, as a sentence."""
        ...
