"""A finished job's verdict, from what its coordinator found and did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np

from lurcher.analyze.throughput import throughput
from lurcher.analyze.values import Copies, Source, Suspect, Verdict, VerdictEvent, Verification
from lurcher.analyze.verdict import build_verdict, suspect_of
from lurcher.config import JobConfig
from lurcher.control.coordinator import Coordinator
from lurcher.control.director import LiveDirector, Stop
from lurcher.control.episode import Episode
from lurcher.layout import Layout
from lurcher.records import Component, Place

PASSING_ITERATIONS = 25
"""A slow period without a culprit that is over within so many iterations is a burst, not a change of level."""


def diagnose(
    config: JobConfig,
    layout: Layout,
    coordinator: Coordinator,
    director: LiveDirector,
    places: tuple[Place, ...],
    path: Path,
    wall_s: float,
    *,
    died: str,
    verification: Verification | None = None,
) -> Verdict:
    """Everything known at the end, as one value. `died`: why the job ended early, "" if it did not."""
    where = {p.rank: p for p in places}
    events = [event_of(episode, where) for episode in coordinator.episodes]
    events += [_stop_of(stop, where) for stop in director.losses]
    if died:
        last = director.iterations[-1] if director.iterations else 0
        events.append(
            VerdictEvent(
                kind="fail_stop",
                onset_iteration=last + 1,
                end_iteration=None,
                detected_iteration=last + 1,
                slowdown=1.0,
                lost_s=0.0,
                cause="unknown",
                evidence=(died,),
            )
        )
    durations = dict(zip(director.iterations, director.durations_s, strict=True))
    slow = next((e for e in events if e.kind == "fail_slow"), None)
    done = coordinator.reconfigurations
    applied = next((r.iteration for r in done if r.outcome == "applied"), None)
    reverted = next((r.iteration for r in done if r.outcome == "reverted"), None)
    rates = throughput(
        durations,
        slow.onset_iteration if slow else None,
        slow.end_iteration if slow else None,
        applied,
        reverted,
        paused=director.paused,
        warmup=config.detect.warmup_iterations,
    )
    return build_verdict(
        source=Source(path=str(path), format="lurcher", num_iterations=len(durations), num_ranks=layout.world_size),
        events=events,
        throughput=rates,
        plans=coordinator.mitigation.proposed,
        present=layout,
        reconfigurations=done,
        emulated=config.pace.kind == "emulated",
        copies=_copies(director),
        verification=verification,
        wall_s=wall_s,
    )


def _copies(director: LiveDirector) -> Copies | None:
    """What keeping the state cost; None where it was never kept."""
    spent_s = director.copies_s
    if not spent_s:
        return None
    share = sum(spent_s) / (sum(director.durations_s) + sum(spent_s))
    return Copies(num=len(spent_s), pause_s=median(spent_s), share=share, most_bytes=max(director.copy_bytes), total_bytes=sum(director.copy_bytes))


def _stop_of(stop: Stop, places: Mapping[int, Place]) -> VerdictEvent:
    """Ranks that stopped, and that the job went on without. Iterations that are computed again are lost like the pause."""
    at = stop.iteration + stop.num_again
    return VerdictEvent(
        kind="fail_stop",
        onset_iteration=at,
        end_iteration=at,
        detected_iteration=at,
        slowdown=1.0,
        lost_s=stop.lost_s,
        cause="unknown",
        suspects=tuple(suspect_of(Component.of_rank(rank), "unknown", 1.0, 1.0, places) for rank in stop.loss.ranks),
        evidence=(stop.loss.why, f"the job went on: {stop.loss.reason if stop.num_again else stop.loss.plan.actions[0].text}"),
    )


def event_of(episode: Episode, places: Mapping[int, Place]) -> VerdictEvent:
    """One episode as the verdict tells it: proven suspects first; without any, only the iterations' own change."""
    proven = [f for f in episode.findings if f.proven]
    confidence = {s.component: s.confidence for s in episode.suspicions}
    suspects: tuple[Suspect, ...] = tuple(
        suspect_of(f.component, f.cause, f.slowdown, max(0.95, confidence.get(f.component, 0.0)), places)
        for f in sorted(proven, key=lambda f: -f.slowdown)
    )
    evidence = [line for s in episode.suspicions for line in s.evidence] + [f.reason for f in episode.findings] + episode.evidence
    over_soon = episode.end is not None and episode.end - episode.onset < PASSING_ITERATIONS
    return VerdictEvent(
        kind="fail_slow" if proven else "burst" if over_soon else "level_shift",
        onset_iteration=episode.onset,
        end_iteration=episode.end,
        detected_iteration=episode.detected,
        slowdown=episode.slowdown,
        lost_s=episode.lost_s,
        cause=proven[0].cause if proven else "unknown",
        suspects=suspects,
        validated=bool(proven),
        evidence=tuple(dict.fromkeys(evidence)),
    )


MAX_SHARE = 0.10
"""Of its emulated time that a chunk's real work may take on the host's CPU, for the ranks to behave like devices of their own."""


def say_emulation(director: LiveDirector) -> str:
    """How honest the emulated device was: real CPU of a chunk over its emulated time. Empty where nothing was emulated."""
    usage = np.concatenate(director.usage) if director.usage else np.empty((0, 2))
    chunks = usage[usage[:, 1] > 0]
    if not len(chunks):
        return ""
    share = chunks[:, 0] / chunks[:, 1]
    median, high = np.quantile(share, [0.5, 0.9])
    total = usage[:, 0].sum() / chunks[:, 1].sum()
    return (
        f"real CPU of a chunk: median {median:.1%} of its emulated time, 90th percentile {high:.1%},"
        f" above {MAX_SHARE:.0%} in {(share > MAX_SHARE).mean():.1%} of {len(chunks)}; all CPU of the ranks: {total:.1%}"
    )
