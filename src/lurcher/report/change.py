"""What was changed, why, and what it won against what was promised."""

from __future__ import annotations

from dataclasses import dataclass

from lurcher.layout import Layout
from lurcher.records import Decision, Plan, Reconfiguration
from lurcher.report.load import Facts, value_as
from lurcher.report.words import divide, split_text


@dataclass(frozen=True)
class ReplicaChange:
    """One replica's micro-batches before and after, and its stages in words where these differ too."""

    replica: int
    before: int
    after: int
    stages: str


@dataclass(frozen=True)
class Change:
    """The first layout change that was carried out, or the plan that was only recommended (`applied` is None then)."""

    plan: Plan
    applied: Reconfiguration | None
    reverted: Reconfiguration | None
    replicas: tuple[ReplicaChange, ...]
    ladder: str
    gain_measured: float | None
    gap_measured: float | None

    @property
    def text(self) -> str:
        """The change in a few words."""
        moved = tuple(r.after for r in self.replicas)
        if moved != tuple(r.before for r in self.replicas):
            return f"micro-batches {split_text(tuple(r.before for r in self.replicas))} → {split_text(moved)}"
        return "; ".join(action.text for action in self.plan.actions) or "another layout"


def main_change(facts: Facts) -> Change | None:
    """The change that answers the report's event; None where no plan that alters anything was made."""
    changes = facts.reconfigurations()
    applied = next((c for c in changes if c.outcome == "applied"), None)
    reverted = next((c for c in changes if applied and c.outcome == "reverted" and c.iteration > applied.iteration), None)
    proposals = [plan for d in facts.decisions if d.kind == "plan" and (plan := value_as(d, Plan))]
    plan = applied.plan if applied else next((p for p in proposals if any(a.kind != "keep" for a in p.actions)), None)
    if plan is None:
        return None
    pace = facts.verdict.throughput if facts.verdict else None
    mitigated = pace.mitigated_iter_per_min if pace and applied else None
    return Change(
        plan=plan,
        applied=applied,
        reverted=reverted,
        replicas=compare(facts.layout, plan.layout),
        ladder=_ladder_reason(facts.decisions, applied),
        gain_measured=divide(mitigated, pace.slow_iter_per_min if pace else None),
        gap_measured=None if (per_bound := divide(60.0, plan.bound_s)) is None or (over := divide(per_bound, mitigated)) is None else over - 1.0,
    )


def compare(before: Layout, after: Layout) -> tuple[ReplicaChange, ...]:
    """Both layouts replica by replica; a replica that one of them lacks runs 0 micro-batches there."""
    found = []
    for d in range(max(len(before.replicas), len(after.replicas))):
        old = before.replicas[d] if d < len(before.replicas) else None
        new = after.replicas[d] if d < len(after.replicas) else None
        stages = "" if old and new and old.stages == new.stages else _stages(after, d)
        found.append(ReplicaChange(d, old.microbatches if old else 0, new.microbatches if new else 0, stages))
    return tuple(found)


def _stages(layout: Layout, d: int) -> str:
    if d >= len(layout.replicas):
        return "dissolved"
    parts = []
    for stage in layout.replicas[d].stages:
        layers = ", ".join(f"{c.first}–{c.end - 1}" for c in stage.chunks)
        parts.append(f"layers {layers} on ranks {', '.join(map(str, stage.ranks)) or 'none (routed)'}")
    return "; ".join(parts)


def _ladder_reason(decisions: list[Decision], applied: Reconfiguration | None) -> str:
    """Of an applied change the last ladder decision before it; otherwise the last one, which says why nothing was done."""
    steps = [d for d in decisions if d.kind == "ladder" and (applied is None or d.iteration <= applied.iteration)]
    return steps[-1].reason if steps else ""
