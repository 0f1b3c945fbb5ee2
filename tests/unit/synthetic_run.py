"""A made-up run directory, written through RunWriter: 8 ranks (TP2 PP2 DP2), rank 5 slow for a while, then a split and its revert.

The times come from a small walk of 1F1B with in-chunk tensor-parallel collectives, so that waiting, splits and
windows hang together as in a real run. It shares no code with lurcher's own model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lurcher.layout import Layout
from lurcher.records import (
    EVENT,
    ITERATION,
    Action,
    BenchResult,
    ChangePoint,
    Component,
    Decision,
    Finding,
    Op,
    Place,
    Plan,
    Reconfiguration,
    Suspicion,
)
from lurcher.runlog import RunHeader, RunWriter

TP, PP, DP = 2, 2, 2
FORWARD_S, BACKWARD_S, REDUCE_S, HOP_S, SYNC_S, OPTIMIZER_S = 0.011, 0.022, 0.0008, 0.0004, 0.008, 0.006
TOKENS = 64
SLOW_RANK, SLOWDOWN, ONSET, END = 5, 1.8, 25, 52
DETECTED, VALIDATED, SPLIT_AT, RECOVERY_SEEN, REVERT_AT = 31, 32, 33, 55, 56
NUM_ITERATIONS = 70


def schedule_1f1b(stage: int, num: int) -> list[tuple[str, int]]:
    """Actions of one stage: warm-up forwards, then forward and backward in turn, then the rest."""
    warm = min(PP - stage - 1, num)
    order = [("F", m) for m in range(warm)]
    for m in range(num - warm):
        order += [("F", warm + m), ("B", m)]
    return order + [("B", m) for m in range(num - warm, num)]


def walk(
    layout: Layout, slowdown: dict[int, float], noise: float, rng: np.random.Generator
) -> tuple[list[tuple[Any, ...]], dict[int, dict[str, float]], float]:
    """One iteration: EVENT tuples without absolute time (seconds), sums per rank, and the iteration's duration in seconds."""
    groups = {(g.kind, g.ranks): g.id for g in layout.groups()}
    events: list[tuple[Any, ...]] = []
    sums = {r: {"busy": 0.0, "tp": 0.0, "pp": 0.0, "dp": SYNC_S, "tokens": 0.0} for r in layout.ranks}
    finish: dict[int, float] = {}
    for d, replica in enumerate(layout.replicas):
        num, first = replica.microbatches, layout.microbatches_of(d).start
        todo = [schedule_1f1b(s, num) for s in range(PP)]
        ended: dict[tuple[str, int, int], float] = {}
        free = [0.0] * PP
        seq = [0] * PP
        while any(todo):
            for s, stage in enumerate(replica.stages):
                while todo[s]:
                    kind, m = todo[s][0]
                    source = s - 1 if kind == "F" else s + 1
                    if 0 <= source < PP and (kind, source, m) not in ended:
                        break
                    start = free[s]
                    if 0 <= source < PP:
                        start = max(free[s], ended[kind, source, m] + HOP_S)
                        for t, r in enumerate(stage.ranks):
                            events.append(
                                (
                                    r,
                                    groups["pp", tuple(sorted(x for st in replica.stages for x in st.ranks))],
                                    Op.RECV,
                                    4,
                                    replica.stages[source].ranks[t],
                                    m,
                                    16384,
                                    free[s],
                                    start,
                                )
                            )
                            sums[r]["pp"] += HOP_S
                    clock = start
                    halves = {
                        r: [(FORWARD_S if kind == "F" else BACKWARD_S) / 2 * slowdown.get(r, 1.0) * rng.normal(1, noise) for _ in "ab"]
                        for r in stage.ranks
                    }
                    for half in range(2):
                        arrive = {r: clock + halves[r][half] for r in stage.ranks}
                        clock = max(arrive.values()) + REDUCE_S
                        for r in stage.ranks:
                            events.append((r, groups["tp", stage.ranks], Op.ALL_REDUCE, 4, -1, seq[s], 16384, arrive[r], clock))
                            sums[r]["busy"] += halves[r][half]
                            sums[r]["tp"] += REDUCE_S
                        seq[s] += 1
                    for r in stage.ranks:
                        events.append((r, -1, Op.FORWARD if kind == "F" else Op.BACKWARD, 0, 0, first + m, 0, start, clock))
                        sums[r]["tokens"] += TOKENS if kind == "F" else 0
                    ended[kind, s, m] = free[s] = clock
                    todo[s].pop(0)
        for s, stage in enumerate(replica.stages):
            for r in stage.ranks:
                finish[r] = free[s]
    for g in layout.groups():
        if g.kind == "dp":
            end = max(finish[r] for r in g.ranks) + SYNC_S
            for r in g.ranks:
                events += [(r, g.id, Op.ALL_REDUCE, 4, -1, 0, 1 << 20, finish[r], end), (r, -1, Op.OPTIMIZER, 0, -1, 0, 0, end, end + OPTIMIZER_S)]
                sums[r]["busy"] += OPTIMIZER_S
                finish[r] = end + OPTIMIZER_S
    duration = max(finish.values()) + 0.002 + 0.01 * abs(rng.normal()) * (noise > 0)
    events += [(r, -1, Op.COMMIT_WAIT, 0, -1, 0, 0, finish[r], duration) for r in layout.ranks]
    return events, sums, duration


def iteration_rows(index: int, start_s: float, sums: dict[int, dict[str, float]], duration: float, expected: float) -> np.ndarray:
    """ITERATION rows of one iteration."""
    rows = np.zeros(len(sums), ITERATION)
    for i, (r, s) in enumerate(sorted(sums.items())):
        own = s["busy"] + s["tp"] + s["pp"] + s["dp"]
        rows[i] = (
            index,
            r,
            round(start_s * 1e9),
            duration,
            s["busy"],
            duration - own,
            s["tp"],
            s["dp"],
            s["pp"],
            0,
            0,
            0,
            s["tokens"],
            s["tokens"] * TOKENS,
            expected,
        )
    return rows


def event_rows(events: list[tuple[Any, ...]], start_s: float, skew_ns: dict[int, int]) -> np.ndarray:
    """EVENT rows with each rank's clock set off by `skew_ns`, as hosts' clocks are."""
    rows = np.zeros(len(events), EVENT)
    for i, (rank, group, op, dtype, peer, seq, num_bytes, start, end) in enumerate(events):
        base = round(start_s * 1e9) + skew_ns[rank]
        rows[i] = (rank, group, op, dtype, peer, seq, num_bytes, base + round(start * 1e9), base + round(end * 1e9), 0)
    return rows


def best_split(layout: Layout, slowdown: dict[int, float]) -> tuple[tuple[int, int], float, float]:
    """(split, its iteration time, the present one's) by trying every split."""
    rng = np.random.default_rng(0)
    total = layout.num_microbatches
    times = {(m, total - m): walk(layout.with_split((m, total - m)), slowdown, 0.0, rng)[2] for m in range(1, total)}
    best = min(times, key=lambda split: times[split])
    return best, times[best], times[total // 2, total // 2]


def header(
    *,
    hosts: tuple[str, str] = ("node-a", "node-b"),
    command: str = "lurcher train examples/slow_rank.toml",
    injected: tuple[str, ...] = ("rank 5 slow x1.8, iterations 25 to 51",),
) -> RunHeader:
    """Header of the made-up job."""
    layout = Layout.uniform(tp=TP, pp=PP, dp=DP, num_layers=4, num_microbatches=32)
    places = tuple(Place(r, hosts[r // 4], r % 4, f"cuda:{r % 4}", f"0000:{r % 4:02x}:00.0", f"mlx5_{r % 4}") for r in range(8))
    return RunHeader(
        lurcher_version="0.1.0",
        versions={"python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
        job={"job": {"iterations": NUM_ITERATIONS, "seed": 0}, "layout": {"tp": 2, "pp": 2, "dp": 2}},
        layout=layout,
        places=places,
        emulated=True,
        injected=injected,
        started_unix_s=1_764_400_000.0,
        command=command,
    )


def write_run(
    path: Path,
    *,
    head: RunHeader | None = None,
    with_verdict: bool = True,
    with_events: bool = True,
    healthy: bool = False,
    reason_suffix: str = "",
    seed: int = 1,
) -> Path:
    """Write the whole directory and return it."""
    head = head or header()
    rng = np.random.default_rng(seed)
    writer = RunWriter.create(path, head)
    layout = head.layout
    slow = {SLOW_RANK: SLOWDOWN}
    split, planned_s, present_s = best_split(layout, slow)
    plain = {name: walk(lay, {}, 0.0, rng)[2] for name, lay in (("even", layout), ("split", layout.with_split(split)))}
    skew = {r: (r // 4) * 7_000_000_000 for r in layout.ranks}
    now, durations, times = 3.0, [], []
    for k in range(NUM_ITERATIONS):
        changed = not healthy and SPLIT_AT <= k < REVERT_AT
        current = layout.with_split(split) if changed else layout
        fault = slow if not healthy and ONSET <= k < END else {}
        events, sums, duration = walk(current, fault, 0.02, rng)
        expected = float("nan") if k < 5 else plain["split" if changed else "even"] * 1.01
        writer.iterations(iteration_rows(k, now, sums, duration, expected))
        if with_events and (label := {20: "healthy", 30: "slow", 40: "mitigated", 62: "recovered"}.get(k)) and (not healthy or k == 20):
            writer.events(k, label, event_rows(events, now, skew))  # type: ignore[arg-type]
        durations.append(duration)
        now += duration + (1.1 if not healthy and k in (VALIDATED, RECOVERY_SEEN) else 0.0)
        times.append(now)
    for decision in [] if healthy else decisions(layout, split, planned_s, present_s, plain["even"], times, reason_suffix):
        writer.decide(decision)
    if with_verdict:
        writer.verdict(healthy_verdict(path, durations) if healthy else verdict(path, head, durations, split, planned_s, reason_suffix))
    else:
        writer.state({"pid": 1, "generation": 0, "ranks": {"0": 2}})
        writer._flush()
        return path
    writer.close()
    return path


def decisions(
    layout: Layout, split: tuple[int, int], planned_s: float, present_s: float, even_s: float, times: list[float], suffix: str
) -> list[Decision]:
    """What a coordinator would have decided."""
    part = Component.of_rank(SLOW_RANK)
    bound_s = even_s * 8 / (7 + 1 / SLOWDOWN)
    plan = Plan(
        layout.with_split(split),
        (Action("split", f"micro-batches (16, 16) -> {split}"),),
        present_s,
        planned_s,
        bound_s,
        0.35,
        0,
        f"splitting {split} takes {planned_s:.3f} s instead of {present_s:.3f} s, {planned_s / bound_s - 1:.0%} above the bound",
    )
    back = Plan(
        layout,
        (Action("split", f"micro-batches {split} -> (16, 16)"),),
        planned_s,
        even_s,
        even_s,
        0.3,
        0,
        "the fault is over: the even split is the fastest again",
    )
    slower = ChangePoint(25, DETECTED, even_s, present_s, present_s / even_s, "slower", "confirmed", "default", 41.0)
    found = [
        (0, "state", "OBSERVE: 18 iterations until the detector is armed", None),
        (18, "state", "OBSERVE: detector armed, noise 1.4 %", None),
        (
            27,
            "change_point",
            "3 iterations in a row 1.58x slower than expected: suspect, extra profiling starts",
            ChangePoint(25, 27, even_s, present_s, 1.58, "slower", "suspect", "default", 17.0),
        ),
        (
            28,
            "suspicion",
            f"rank 5: busy time per token 1.79x its own history, the cohort 1.00x; waits least{suffix}",
            Suspicion(part, "compute", 1.79, 0.93, ("busy 1.79x its history",)),
        ),
        (DETECTED, "change_point", "6 of the last 7 iterations above 1.08x: confirmed, onset 25", slower),
        (DETECTED, "state", "VALIDATE: one suspect, benchmark at the next border", None),
        (VALIDATED, "bench", "GEMM on rank 5: 4.51 ms against 2.50 ms at start", BenchResult(part, "gemm", 0.00451, 9)),
        (
            VALIDATED,
            "finding",
            "rank 5 is slow: GEMM 1.80x its own baseline, cohort 1.01x",
            Finding(part, "compute", 1.8, 0.00451, 0.0025, "s", 9, "emulated", True, "1.80x its own baseline"),
        ),
        (VALIDATED, "plan", plan.reason, plan),
        (VALIDATED, "ladder", "REBALANCE: 3.4 s lost so far exceed the 2.8 s that checking and switching cost", None),
        (
            SPLIT_AT,
            "reconfiguration",
            f"split {split} applied, pause 0.36 s, no bytes moved",
            Reconfiguration(plan, 1, SPLIT_AT, 0.36, 0, "applied", "accepted"),
        ),
        (SPLIT_AT, "state", "MITIGATE: watching rank 5 for recovery", None),
        (
            RECOVERY_SEEN,
            "finding",
            "rank 5 is back: GEMM 1.01x its own baseline",
            Finding(part, "compute", 1.01, 0.00252, 0.0025, "s", 9, "emulated", False, "1.01x its own baseline"),
        ),
        (REVERT_AT, "reconfiguration", "even split restored, pause 0.31 s", Reconfiguration(back, 2, REVERT_AT, 0.31, 0, "reverted", "recovered")),
        (REVERT_AT, "state", "OBSERVE: rank 5 recovered", None),
    ]
    return [Decision(k, round(times[k], 2), kind, reason, value) for k, kind, reason, value in found]  # type: ignore[arg-type]


def _rate(durations: list[float], first: int, end: int) -> float:
    return round(60 / float(np.median(durations[first:end])), 2)


def healthy_verdict(path: Path, durations: list[float]) -> dict[str, Any]:
    """verdict.json of a run in which nothing happened."""
    return {
        "schema": "lurcher/verdict/1",
        "source": {"path": str(path), "format": "lurcher/run/1", "num_iterations": len(durations), "num_ranks": 8},
        "verdict": "healthy",
        "summary": "Healthy: 70 iterations at 65 a minute, no lasting change.",
        "events": [],
        "what_if": None,
        "plan": None,
        "reconfigurations": [],
        "throughput": {
            "healthy_iter_per_min": _rate(durations, 3, 70),
            "slow_iter_per_min": None,
            "mitigated_iter_per_min": None,
            "recovered_iter_per_min": None,
        },
        "wall_s": 61.0,
    }


def verdict(path: Path, head: RunHeader, durations: list[float], split: tuple[int, int], planned_s: float, suffix: str) -> dict[str, Any]:
    """verdict.json as DESIGN section 3 has it."""
    place = head.places[SLOW_RANK]
    suspect = {
        "component": {"kind": "rank", "id": "5", "ranks": [5], "places": [{"rank": 5, "host": place.host, "local_rank": 1, "device": place.device}]},
        "cause": "compute",
        "slowdown": 1.8,
        "confidence": 0.97,
    }
    lost = sum(durations[ONSET:END]) - float(np.median(durations[3:ONSET])) * (END - ONSET)
    rates = {
        "healthy_iter_per_min": _rate(durations, 3, ONSET),
        "slow_iter_per_min": _rate(durations, ONSET, SPLIT_AT),
        "mitigated_iter_per_min": _rate(durations, SPLIT_AT + 1, END),
        "recovered_iter_per_min": _rate(durations, REVERT_AT + 1, NUM_ITERATIONS),
    }
    return {
        "schema": "lurcher/verdict/1",
        "source": {"path": str(path), "format": "lurcher/run/1", "num_iterations": NUM_ITERATIONS, "num_ranks": 8},
        "verdict": "fail_slow",
        "summary": f"A real fault, not the workload: rank 5 ({place.host}, {place.device}) computed 1.8x slower from iteration 25 to 51 and cost {lost:.0f} s; "
        f"the micro-batch split {split} won back {rates['mitigated_iter_per_min'] / rates['slow_iter_per_min']:.2f}x throughput until it recovered.{suffix}",
        "events": [
            {
                "kind": "fail_slow",
                "onset_iteration": ONSET,
                "end_iteration": END - 1,
                "detected_iteration": DETECTED,
                "slowdown": 1.72,
                "lost_s": round(lost, 2),
                "cause": "compute",
                "suspects": [suspect],
                "validated": True,
                "evidence": ["busy time per token 1.79x its own history, cohort 1.00x", "GEMM 1.80x its own baseline, cohort 1.01x" + suffix],
            }
        ],
        "what_if": None,
        "plan": {
            "schema": "lurcher/plan/1",
            "present": None,
            "plans": [
                {
                    "predicted_s": planned_s,
                    "bound_s": 0.63,
                    "gap": 0.1,
                    "pause_s": 0.35,
                    "bytes_moved": 0,
                    "layout": None,
                    "actions": [],
                    "reason": "split",
                }
            ],
        },
        "reconfigurations": [],
        "throughput": rates,
        "wall_s": 71.0,
    }
