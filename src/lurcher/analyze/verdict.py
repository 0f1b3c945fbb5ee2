"""The verdict: from events to one word, one sentence and one JSON file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from lurcher.analyze.summary import summary_sentence
from lurcher.analyze.throughput import durations_by_iteration, lost_s, throughput
from lurcher.analyze.values import (
    LIST_SCHEMA,
    SCHEMA,
    Copies,
    PlanEntry,
    PlanSet,
    Present,
    Source,
    Suspect,
    SuspectComponent,
    Throughput,
    Verdict,
    VerdictEvent,
    VerdictKind,
    Verification,
)
from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.records import Cause, Component, Place, Plan, Reconfiguration

__all__ = [
    "PlanSet",
    "Source",
    "Suspect",
    "SuspectComponent",
    "Throughput",
    "Verdict",
    "VerdictEvent",
    "build_verdict",
    "durations_by_iteration",
    "load_verdict",
    "lost_s",
    "plan_section",
    "save_verdict",
    "summary_sentence",
    "suspect_of",
    "throughput",
    "to_json",
    "verdict_of",
    "verdicts_to_json",
]

WORK_CAUSES: frozenset[Cause] = frozenset({"workload", "stage_imbalance", "sequence_imbalance"})
"""Causes that lie in what the job does, not in what it runs on."""


def verdict_of(events: Iterable[VerdictEvent]) -> VerdictKind:
    """One word for all events: the first of these that holds.

    Any fail_slow; any fail_stop or hang; a lasting change (level_shift or drift) explained by work: not_hardware; an
    unexplained level_shift: inconclusive; otherwise healthy. Bursts and recognised restarts never count.
    """
    seen = {(event.kind, event.cause in WORK_CAUSES) for event in events}
    kinds = {kind for kind, _ in seen}
    if "fail_slow" in kinds:
        return "fail_slow"
    if kinds & {"fail_stop", "hang"}:
        return "fail_stop"
    if seen & {("level_shift", True), ("drift", True)}:
        return "not_hardware"
    return "inconclusive" if "level_shift" in kinds else "healthy"


def suspect_of(component: Component, cause: Cause, slowdown: float, confidence: float, places: Mapping[int, Place] | None = None) -> Suspect:
    """A suspect with the places of its ranks, where they are known."""
    known = places or {}
    where = tuple(known[rank] for rank in component.ranks if rank in known)
    named = SuspectComponent(kind=component.kind, id=component.id, ranks=tuple(sorted(component.ranks)), places=where)
    return Suspect(component=named, cause=cause, slowdown=slowdown, confidence=confidence)


def plan_section(plans: Sequence[Plan], present: Layout | None = None) -> PlanSet | None:
    """The `plan` section of plans, best first; None without plans. `present`: the layout they were made for."""
    if not plans:
        return None
    entries = tuple(
        PlanEntry(
            predicted_s=plan.predicted_s,
            bound_s=plan.bound_s if isfinite(plan.bound_s) else None,
            gap=plan.gap if isfinite(plan.gap) else None,
            pause_s=plan.pause_s,
            bytes_moved=plan.bytes_moved,
            layout=plan.layout,
            actions=plan.actions,
            reason=plan.reason,
        )
        for plan in plans
    )
    now = None if present is None else Present(predicted_s=plans[0].present_s, layout=present)
    return PlanSet(present=now, plans=entries)


def build_verdict(
    *,
    source: Source,
    events: Sequence[VerdictEvent],
    throughput: Throughput = Throughput(),  # noqa: B008 - frozen
    plans: Sequence[Plan] = (),
    present: Layout | None = None,
    reconfigurations: Sequence[Reconfiguration] = (),
    what_if: dict[str, Any] | None = None,
    emulated: bool = False,
    copies: Copies | None = None,
    verification: Verification | None = None,
    wall_s: float = 0.0,
) -> Verdict:
    """Everything known, as one value. Events are put in the order of their onset; verdict and summary follow from them."""
    ordered = tuple(sorted(events, key=lambda e: (e.onset_iteration, e.detected_iteration)))
    kind = verdict_of(ordered)
    plan = plan_section(plans, present)
    sentence = summary_sentence(kind, ordered, source, reconfigurations=reconfigurations, plan=plan, throughput=throughput, emulated=emulated)
    return Verdict(
        source=source,
        verdict=kind,
        summary=sentence,
        events=ordered,
        what_if=what_if,
        plan=plan,
        reconfigurations=tuple(reconfigurations),
        throughput=throughput,
        copies=copies,
        verification=verification,
        wall_s=wall_s,
    )


def to_json(verdict: Verdict) -> bytes:
    """Indented JSON with a final newline; keys in the order of the schema. What is not finite is null: JSON has no other numbers."""
    return _encode(msgspec.to_builtins(verdict))


def verdicts_to_json(verdicts: Sequence[Verdict]) -> bytes:
    """Several inputs' verdicts as one document."""
    return _encode({"schema": LIST_SCHEMA, "verdicts": [msgspec.to_builtins(v) for v in verdicts]})


def save_verdict(path: Path, verdict: Verdict) -> None:
    """Write whole: under a temporary name first, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(to_json(verdict))
    temporary.replace(path)


def load_verdict(path: Path) -> Verdict:
    """Read a verdict back; a UserError in one line where it cannot be."""
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; give the verdict.json of a run") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no JSON ({error}); give the verdict.json of a run") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {schema!r}; this lurcher reads {SCHEMA!r}")
    try:
        return msgspec.convert(raw, Verdict)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} does not hold what {SCHEMA!r} promises: {error}") from error


def _encode(document: Any) -> bytes:
    # msgspec writes NaN and infinities as null: JSON has no others.
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
