"""One slow period from its onset to its end: what becomes an event of the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lurcher.control.parts import Part, part_of
from lurcher.records import Cause, ChangePoint, Finding, Suspicion


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
        before = [s for s in history if s.iteration >= self.onset]
        self.lost_s = sum(max(0.0, s.duration_s - s.healthy_s) for s in before)
        self._seen_s, self._num_seen = sum(s.duration_s for s in before), len(before)

    @property
    def is_open(self) -> bool:
        """Still slow."""
        return self.end is None

    @property
    def validated(self) -> bool:
        """A benchmark bore at least one suspicion out."""
        return any(f.proven for f in self.findings)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Causes of what was proven in this period, the first one first."""
        return tuple(dict.fromkeys(f.cause for f in self.findings if f.proven))

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks proven slow in this period."""
        return frozenset(part for part in self.parts if isinstance(part, int))

    @property
    def parts(self) -> frozenset[Part]:
        """Ranks and links proven slow in this period."""
        return frozenset(part_of(f.component) for f in self.findings if f.proven)

    @property
    def lasted_s(self) -> float:
        """Seconds from the onset to the end, pauses left out: its iterations at their mean; 0 while it is open."""
        if self.end is None or not self._num_seen:
            return 0.0
        return (self.end - self.onset + 1) * self._seen_s / self._num_seen

    def add(self, sample: Sample) -> None:
        """One more iteration of the period."""
        self.lost_s += max(0.0, sample.duration_s - sample.healthy_s)
        self._seen_s += sample.duration_s
        self._num_seen += 1

    def close(self, iteration: int, reason: str) -> None:
        """The period is over; `iteration` is its last slow one."""
        self.end = max(iteration, self.onset)
        self.evidence.append(reason)
