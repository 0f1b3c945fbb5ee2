"""Operation traces of real jobs (ByteDance-Seed/StragglerAnalysis): published numbers, right answers, and injected faults among real scatter."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lurcher.analyze.trace import analyze_trace, explain_trace
from lurcher.analyze.values import Verdict
from lurcher.ingest.op_trace import OpTrace, TraceOp
from lurcher.ingest.op_trace_read import is_trace, read_trace
from lurcher.localize.whatif import TraceAnalysis, analyse
from lurcher.localize.whatif_chunks import Chunks
from lurcher.localize.whatif_replay import replay
from lurcher.localize.whatif_workers import slow_workers

TRACES = ("AR", "SE", "ST")
TOLERANCE = 1e-6


def folder(shared_data: Path) -> Path:
    return shared_data / "straggler_analysis"


@functools.cache
def found(path: Path) -> tuple[Verdict, TraceAnalysis]:
    assert is_trace(path)
    return analyze_trace(path)


def of(shared_data: Path, name: str) -> tuple[Verdict, TraceAnalysis]:
    return found(folder(shared_data) / f"trace-{name}.parquet")


def published(shared_data: Path, kind: str, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder(shared_data) / f"{kind}-{name}.json").read_text())
    return value


@pytest.mark.parametrize("name", TRACES)
def test_every_published_number(name: str, shared_data: Path) -> None:
    """Means and per-step values of result-*.json, and all of ms-*.json and mw-*.json, to 1e-6 relative."""
    said, what = published(shared_data, "result", name), of(shared_data, name)[1].what_if
    steps = [str(step) for step in what.steps.tolist()]
    close = functools.partial(pytest.approx, rel=TOLERANCE)
    for key, values in (("step_t_base", what.measured_s), ("step_t_nodelay", what.no_delay_s), ("step_t_noblk", np.full(len(steps), what.ideal_s))):
        assert dict(zip(steps, values.tolist(), strict=True)) == close(said[key])
    assert (what.slowdown, what.launch_slowdown) == close((said["blocking_slowdown"], said["launch_slowdown"]))
    assert dict(zip(steps, (what.no_delay_s / what.ideal_s).tolist(), strict=True)) == close(said["blocking_step_slowdown"])
    assert dict(zip(steps, (what.measured_s / what.no_delay_s).tolist(), strict=True)) == close(said["launch_step_slowdown"])
    for key, names, seconds in (
        ("dp_rank", [str(i) for i in range(len(what.only_dp_s))], what.only_dp_s),
        ("stage", [str(i) for i in range(len(what.only_stage_s))], what.only_stage_s),
        ("optype", what.types, what.only_type_s),
    ):
        assert dict(zip(names, what.ratios(seconds).tolist(), strict=True)) == close(said[f"blocking_decompose_by_{key}"])
        per_step = said[f"blocking_decompose_by_{key}_per_step"]
        for place, step in enumerate(steps):
            assert dict(zip(names, (seconds[:, place] / what.ideal_s).tolist(), strict=True)) == close(per_step[step])
    for kind, removal in (("ms", what.m_s), ("mw", what.m_w)):
        numbers = published(shared_data, kind, name)
        mine = {"trem": removal.removed_s, "tadd": removal.added_s, "tori": removal.no_delay_s, "tideal": removal.ideal_s}
        mine |= {"rem": removal.share, "add": removal.added_share, f"M{kind[1]}": removal.share}
        assert mine == close(numbers)


@pytest.mark.parametrize("name", TRACES)
def test_each_worker_alone_is_what_a_whole_replay_finds(name: str, shared_data: Path) -> None:
    """S_w from two members a group, against a replay of all replicas for every worker."""
    analysis = of(shared_data, name)[1]
    times, table = analysis.times, analysis.graph.table
    for dp in range(analysis.num_replicas):
        for stage in range(analysis.num_stages):

            def cost_of(op: int, dp: int = dp, stage: int = stage) -> np.ndarray:
                seconds = np.full((1, *times.real_s.shape[1:]), times.ideal_s[op])
                if table.stage[op] == stage:
                    seconds[0, dp] = times.real_s[op, dp]
                return seconds

            whole = replay(analysis.order, cost_of, (1, *times.real_s.shape[1:]))[0]
            assert analysis.what_if.only_worker_s[dp, stage] == pytest.approx(whole, rel=1e-12)


def test_ar_is_one_slow_worker(shared_data: Path) -> None:
    verdict, _ = of(shared_data, "AR")
    assert verdict.verdict == "fail_slow"
    (event,) = verdict.events
    (suspect,) = event.suspects
    assert (event.kind, event.cause, suspect.cause, suspect.component.kind, suspect.component.id) == (
        "fail_slow",
        "compute",
        "compute",
        "group",
        "dp0/stage0",
    )
    assert suspect.component.ranks == (0, 1, 2, 3) and 2.3 <= suspect.slowdown <= 2.5
    assert event.onset_iteration == 16 and event.end_iteration is None and event.slowdown == pytest.approx(1.973, abs=5e-4)
    text = " ".join((verdict.summary, *event.evidence))
    assert "a remark, not the cause: the last stage has x1.04" in text
    assert not any(word in text for word in ("reduce-scatter", "all-gather", "all-reduce", "dp1", "dp2", "dp3", "stage3"))
    assert verdict.plan is not None and verdict.plan.plans[0].actions[0].kind == "restart" and verdict.plan.plans[0].predicted_s < 23.0


def test_se_is_sequence_lengths_then_the_last_stage(shared_data: Path) -> None:
    verdict, _ = of(shared_data, "SE")
    assert verdict.verdict == "not_hardware"
    assert [event.cause for event in verdict.events] == ["sequence_imbalance", "stage_imbalance"]
    assert [(s.component.kind, s.component.id) for event in verdict.events for s in event.suspects] == [("stage", "1")]
    assert verdict.events[1].suspects[0].slowdown == pytest.approx(0.381 / 0.254, rel=0.01)


def test_st_is_the_last_stage_and_its_cure(shared_data: Path) -> None:
    verdict, _ = of(shared_data, "ST")
    assert verdict.verdict == "not_hardware"
    (event,) = verdict.events
    (suspect,) = event.suspects
    assert (event.cause, suspect.component.kind, suspect.component.id) == ("stage_imbalance", "stage", "3")
    assert suspect.slowdown == pytest.approx(1.63, abs=0.005)
    assert verdict.plan is not None and verdict.plan.present is not None
    (plan,) = verdict.plan.plans
    assert plan.actions[0].kind == "relayer" and plan.layout.replicas[0].stages[3].num_layers < 8
    assert verdict.plan.present.predicted_s / plan.predicted_s > 1.15


def test_the_timeline_of_st_says_the_same(shared_data: Path) -> None:
    verdict, analysis = found(folder(shared_data) / "timeline-ST.json.gz")
    other, whole = of(shared_data, "ST")
    assert analysis.what_if.slowdown == pytest.approx(whole.what_if.slowdown, rel=TOLERANCE)
    assert [event.cause for event in verdict.events] == [event.cause for event in other.events] and verdict.verdict == "not_hardware"


def slowed(trace: OpTrace, workers: tuple[tuple[int, int], ...], factor: float = 1.5) -> OpTrace:
    """The rows with the computation of some workers stretched."""
    duration = trace.duration_s.copy()
    for dp, stage in workers:
        duration[(trace.dp == dp) & (trace.stage == stage) & np.isin(trace.op, (TraceOp.FORWARD, TraceOp.BACKWARD))] *= factor
    return replace(trace, duration_s=duration)


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_any_one_slow_worker_is_named(name: str, shared_data: Path) -> None:
    """All 8 and 64 cases, through the whole analysis; none injected, none named (see above)."""
    trace = read_trace(folder(shared_data) / f"trace-{name}.parquet")
    workers = sorted(set(zip(trace.dp.tolist(), trace.stage.tolist(), strict=True)))
    assert len(workers) == {"ST": 8, "SE": 64}[name]
    for dp, stage in workers:
        verdict, _ = explain_trace(slowed(trace, ((dp, stage),)))
        hardware = [s for event in verdict.events if event.kind == "fail_slow" for s in event.suspects]
        assert verdict.verdict == "fail_slow" and [s.component.id for s in hardware] == [f"dp{dp}/stage{stage}"]
        assert hardware[0].slowdown == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_two_slow_workers_are_named(name: str, shared_data: Path) -> None:
    """All pairs of ST but those that are the whole cohort of a stage (two replicas, both slow: that is a longer stage to anybody);
    of SE all pairs within a replica, and each other worker with one of its own stage and one of another."""
    work = of(shared_data, name)[1].work
    stages, _, replicas, _ = work.forward_s.shape
    pairs = list(itertools.combinations(itertools.product(range(replicas), range(stages)), 2))
    if name == "ST":
        pairs = [(one, other) for one, other in pairs if one[1] != other[1]]
        assert len(pairs) == 24
    else:
        pairs = [(one, other) for one, other in pairs if one[0] == other[0] or (one[0] + 1) % replicas == other[0]]
        assert len(pairs) > 100
    for pair in pairs:
        forward, backward = work.forward_s.copy(), work.backward_s.copy()
        for dp, stage in pair:
            forward[stage, :, dp] *= 1.5
            backward[stage, :, dp] *= 1.5
        assert {(w.dp, w.stage) for w in slow_workers(Chunks(forward, backward))} == set(pair)


def test_two_slow_workers_through_the_whole_analysis(shared_data: Path) -> None:
    trace = read_trace(folder(shared_data) / "trace-ST.parquet")
    verdict, _ = explain_trace(slowed(trace, ((0, 1), (1, 3))))
    assert sorted(s.component.id for event in verdict.events if event.kind == "fail_slow" for s in event.suspects) == ["dp0/stage1", "dp1/stage3"]


def test_a_fault_in_some_steps_only(shared_data: Path) -> None:
    """The steps are sampled: onset and end are steps of the trace."""
    trace = read_trace(folder(shared_data) / "trace-SE.parquet")
    steps = np.unique(trace.step)
    inside = np.isin(trace.step, steps[10:30])
    duration = np.where(inside, slowed(trace, ((7, 1),)).duration_s, trace.duration_s)
    verdict, _ = explain_trace(replace(trace, duration_s=duration))
    event = verdict.events[0]
    assert (event.kind, event.onset_iteration, event.end_iteration) == ("fail_slow", steps[10], steps[29])
    assert [s.component.id for s in event.suspects] == ["dp7/stage1"] and event.detected_iteration == steps[12]


def test_an_analysis_can_be_repeated(shared_data: Path) -> None:
    trace = read_trace(folder(shared_data) / "trace-ST.parquet")
    assert analyse(trace).what_if.slowdown == of(shared_data, "ST")[1].what_if.slowdown
