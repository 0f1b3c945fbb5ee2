"""One slow period from its onset to its end: what becomes an event of the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lurcher.records import ChangePoint, Finding, Suspicion


class Sample(NamedTuple):
    """What one iteration took and should have taken on healthy parts, in seconds."""

    iteration: int
    duration_s: float
    healthy_s: float


class Episode:
    """A contiguous slow period. Escalation raises it; only recovery ends it."""

    def __init__(self, change: ChangePoint, suspicions: Sequence[Suspicion], history: Sequence[Sample]) -> None:
        self.onset = change.iteration
        self.detected = change.detected_iteration
        self.slowdown = change.slowdown
        self.suspicions = tuple(suspicions)
        self.findings: tuple[Finding, ...] = ()
        self.evidence: list[str] = []
        self.end: int | None = None
        self.lost_s = sum(max(0.0, s.duration_s - s.healthy_s) for s in history if s.iteration >= self.onset)

    @property
    def is_open(self) -> bool:
        """Still slow."""
        return self.end is None

    @property
    def validated(self) -> bool:
        """A benchmark bore at least one suspicion out."""
        return any(f.proven for f in self.findings)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks proven slow in this period."""
        return frozenset(r for f in self.findings if f.proven for r in f.component.ranks)

    def add(self, sample: Sample) -> None:
        """One more iteration of the period."""
        self.lost_s += max(0.0, sample.duration_s - sample.healthy_s)

    def close(self, iteration: int, reason: str) -> None:
        """The period is over; `iteration` is its last slow one."""
        self.end = max(iteration, self.onset)
        self.evidence.append(reason)
