"""verdict.json as the report reads it: every key may be missing, unknown ones are passed over.

The report and the analysis do not import each other; the file between them is the contract (schema lurcher/verdict/1).
"""

from __future__ import annotations

from typing import Any

import msgspec

from lurcher.errors import UserError

VERDICT_SCHEMA = "lurcher/verdict/1"


class ComponentView(msgspec.Struct, frozen=True):
    """The part under suspicion."""

    kind: str = ""
    id: str = ""
    ranks: tuple[int, ...] = ()


class SuspectView(msgspec.Struct, frozen=True):
    """A component with its own slowdown (observed / expected) and a confidence 0..1."""

    component: ComponentView = ComponentView()
    cause: str = "unknown"
    slowdown: float | None = None
    confidence: float | None = None


class EventView(msgspec.Struct, frozen=True):
    """One contiguous slow period, `end_iteration` its last slow iteration; `slowdown` is the iteration's, `lost_s` the seconds it cost."""

    kind: str = ""
    onset_iteration: int | None = None
    end_iteration: int | None = None
    detected_iteration: int | None = None
    slowdown: float | None = None
    lost_s: float | None = None
    cause: str | None = None
    suspects: tuple[SuspectView, ...] = ()
    validated: Any = False
    evidence: tuple[str, ...] = ()


class ThroughputView(msgspec.Struct, frozen=True):
    """Iterations per minute; None where there was no such period."""

    healthy_iter_per_min: float | None = None
    slow_iter_per_min: float | None = None
    mitigated_iter_per_min: float | None = None
    recovered_iter_per_min: float | None = None


class CopiesView(msgspec.Struct, frozen=True):
    """What keeping copies of the state cost."""

    num: int = 0
    pause_s: float | None = None
    share: float = 0.0
    most_bytes: int = 0
    total_bytes: int = 0


class VerificationView(msgspec.Struct, frozen=True):
    """Whether the training was what it is without faults, and how far off."""

    same: bool = False
    reason: str = ""


class VerdictView(msgspec.Struct, frozen=True):
    """The whole verdict."""

    schema: str = VERDICT_SCHEMA
    verdict: str = "inconclusive"
    summary: str = ""
    events: tuple[EventView, ...] = ()
    throughput: ThroughputView | None = None
    copies: CopiesView | None = None
    verification: VerificationView | None = None
    wall_s: float | None = None

    @property
    def main_event(self) -> EventView | None:
        """The event that the report is about: a fault before anything else, then the one that cost most."""
        faults = ("fail_stop", "hang", "fail_slow")
        lasting = [event for event in self.events if event.kind not in ("burst", "restart")]
        return max(lasting, key=lambda event: (event.kind in faults, event.lost_s or 0.0), default=None)


def view_verdict(verdict: dict[str, Any] | None, source: str) -> VerdictView | None:
    """Read a verdict mapping; UserError names `source` where it is of another shape."""
    if verdict is None:
        return None
    try:
        view = msgspec.convert(verdict, VerdictView, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"{source} does not follow schema {VERDICT_SCHEMA} ({error}); remove it to see the report without a verdict") from error
    if view.schema.split(".")[0] != VERDICT_SCHEMA:
        raise UserError(f"{source} has schema {view.schema!r}, this version reads {VERDICT_SCHEMA}; use the lurcher that wrote it")
    return view
