"""The verdict in one sentence: a real fault or the workload; which part; what was changed and what it won."""

from __future__ import annotations

from collections.abc import Sequence

from lurcher.analyze.values import PlanSet, Source, Suspect, Throughput, VerdictEvent, VerdictKind
from lurcher.records import Reconfiguration

_CAUSES = {
    "compute": "computes too slowly",
    "communication": "communicates too slowly",
    "input": "waits for its input data",
    "host": "is held up by its host",
    "unknown": "is slow for an unknown cause",
}
_WORK = {
    "workload": "the work itself changed",
    "stage_imbalance": "one stage has more work than the others by design",
    "sequence_imbalance": "the micro-batches are of uneven length",
}


def summary_sentence(
    verdict: VerdictKind,
    events: Sequence[VerdictEvent],
    source: Source,
    *,
    reconfigurations: Sequence[Reconfiguration] = (),
    plan: PlanSet | None = None,
    throughput: Throughput = Throughput(),  # noqa: B008 - frozen
    emulated: bool = False,
) -> str:
    """One sentence in plain words, ending with a full stop. `emulated`: device times were emulated, and the sentence says so."""
    parts = [_finding(verdict, events, source, throughput, emulated)]
    if verdict == "fail_slow":
        parts.append(_change(reconfigurations, plan, throughput, own=source.format == "lurcher"))
        others = [e for e in events if e.kind == "fail_slow"]
        if len(others) > 1:
            parts.append(f"{len(others)} slow periods in all, the costliest is told here")
    return "; ".join(part for part in parts if part) + "."


def _finding(verdict: VerdictKind, events: Sequence[VerdictEvent], source: Source, throughput: Throughput, emulated: bool) -> str:
    if verdict == "fail_slow":
        return _fail_slow(max((e for e in events if e.kind == "fail_slow"), key=lambda e: e.lost_s), emulated)
    if verdict == "fail_stop":
        event = [e for e in events if e.kind in ("fail_stop", "hang")][-1]
        who = " and ".join(map(_name, event.suspects)) or "a part of the job"
        them, were = ("them", "they were") if len(event.suspects) > 1 else ("it", "it was")
        went_on = f", and the job went on without {them} {event.lost_s:.1f} s after {were} missed" if event.end_iteration is not None else ""
        return f"A real fault: {who} {'hangs' if event.kind == 'hang' else 'died'} at iteration {event.onset_iteration}{went_on}"
    if verdict == "not_hardware":
        event = next(e for e in events if e.cause in _WORK)
        return f"Not hardware: {_WORK[event.cause]}, x{event.slowdown:.2f} {_when(event)}, and no rank or link is to blame"
    if verdict == "inconclusive":
        event = next(e for e in events if e.kind == "level_shift")
        return f"Not enough evidence: iterations take x{event.slowdown:.2f} {_when(event)}, and nothing at hand says whether hardware or work is the cause"
    return _healthy(events, source, throughput)


def _fail_slow(event: VerdictEvent, emulated: bool) -> str:
    if not event.suspects:
        return f"A real slowdown, not the workload: iterations took x{event.slowdown:.2f} {_when(event)}, {_cost(event)}; no part can be named from this input"
    named = " and ".join(f"{_name(s)} {_CAUSES.get(s.cause, 'is slow')}, x{s.slowdown:.2f}" for s in event.suspects)
    if event.validated:
        sure = f"{'its' if len(event.suspects) == 1 else 'their'} own benchmark {'on the emulated device ' if emulated else ''}bears it out"
    else:
        sure = "no benchmark has tested it" + (" (emulated device)" if emulated else "")
    confidence = min(s.confidence for s in event.suspects)
    return f"A real fault, not the workload: {named}, {_when(event)}; iterations took x{event.slowdown:.2f}, {_cost(event)}; {sure} (confidence {confidence:.2f})"


def _change(reconfigurations: Sequence[Reconfiguration], plan: PlanSet | None, throughput: Throughput, *, own: bool) -> str:
    """What was changed; `own`: the job ran on lurcher's runtime, so that nothing is a change worth saying."""
    applied = next((r for r in reconfigurations if r.outcome == "applied"), None)
    if applied is None:
        best = plan.plans[0] if plan is not None and plan.plans else None
        if best is None or plan is None or plan.present is None or all(a.kind == "keep" for a in best.actions):
            return "nothing was changed" if own else ""
        texts = ", ".join(a.text.rstrip(".") for a in best.actions)
        return f"nothing was changed; recommended: {texts}, predicted x{plan.present.predicted_s / best.predicted_s:.2f} throughput"
    texts = ", ".join(a.text.rstrip(".") for a in applied.plan.actions)
    said = f"changed from iteration {applied.iteration}: {texts}"
    slow, mitigated, recovered = throughput.slow_iter_per_min, throughput.mitigated_iter_per_min, throughput.recovered_iter_per_min
    if slow and mitigated:
        said += f", which took throughput from {slow:.1f} to {mitigated:.1f} iterations a minute, x{mitigated / slow:.2f} (predicted x{applied.plan.gain:.2f})"
    reverted = next((r for r in reconfigurations if r.outcome == "reverted"), None)
    if reverted is not None:
        said += f"; undone from iteration {reverted.iteration} after the recovery" + (f" ({recovered:.1f} iterations a minute)" if recovered else "")
    return said


def _healthy(events: Sequence[VerdictEvent], source: Source, throughput: Throughput) -> str:
    said = f"Healthy: no lasting slowdown in {source.num_iterations} iterations"
    if source.num_ranks > 1:
        said += f" of {source.num_ranks} ranks"
    if throughput.healthy_iter_per_min:
        said += f" ({throughput.healthy_iter_per_min:.1f} a minute)"
    for kind, word in (("burst", "short burst"), ("drift", "slow drift")):
        found = [e for e in events if e.kind == kind]
        if found:
            worst = max(found, key=lambda e: e.slowdown)
            said += f"; {len(found)} {word}{'s' if len(found) > 1 else ''}, up to x{worst.slowdown:.2f} {_when(worst)}"
    at = [e.onset_iteration for e in events if e.kind == "restart"]
    if at:
        said += f"; restarted at {at[0]}" if len(at) == 1 else f"; restarted {len(at)} times, first at {at[0]}"
    return said


def _name(suspect: Suspect) -> str:
    component = suspect.component
    where = ", ".join(f"{p.host}, {p.device}" for p in component.places[:2])
    return f"{component.kind} {component.id}" + (f" ({where})" if where else "")


def _when(event: VerdictEvent) -> str:
    if event.end_iteration is None:
        return f"since iteration {event.onset_iteration}"
    return f"from iteration {event.onset_iteration} to {event.end_iteration}"


def _cost(event: VerdictEvent) -> str:
    return f"which cost {event.lost_s:.1f} s so far" if event.end_iteration is None else f"which cost {event.lost_s:.1f} s"
