"""The verdict on made-up traces: hardware, design, sequence lengths, links, hosts and mixtures are told apart, and the remedy is worth what it says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import synthetic_run
from msgspec.structs import replace

from lurcher.analyze.trace import explain_trace
from lurcher.analyze.trace_run import with_replay
from lurcher.analyze.values import Source, Verdict
from lurcher.analyze.verdict import load_verdict, to_json
from lurcher.ingest.op_trace import OpTrace, TraceOp


def verdict_of(trace: OpTrace) -> Verdict:
    return explain_trace(trace)[0]


def named(verdict: Verdict) -> list[tuple[str, str]]:
    return [(suspect.component.kind, suspect.component.id) for event in verdict.events for suspect in event.suspects]


def test_a_healthy_job_is_healthy(made: ModuleType) -> None:
    for seed in range(6):
        verdict = verdict_of(made.made_trace(4, 4, 8, 6, seed=seed))
        assert (verdict.verdict, verdict.events, verdict.plan) == ("healthy", (), None)
        assert verdict.summary.startswith("Healthy")


def test_a_slow_worker_with_its_period_cost_and_remedies(made: ModuleType) -> None:
    trace = made.made_trace(4, 4, 16, 20, slow={(2, 1): 2.0}, slow_steps=slice(6, 15))
    verdict = verdict_of(trace)
    (event,) = verdict.events
    assert (verdict.verdict, event.kind, event.cause) == ("fail_slow", "fail_slow", "compute")
    assert (event.onset_iteration, event.end_iteration, event.detected_iteration) == (6, 14, 8)
    assert named(verdict) == [("group", "dp2/stage1")]
    (suspect,) = event.suspects
    assert suspect.slowdown == pytest.approx(2.0, rel=0.03) and suspect.component.ranks == (2 * 4 + 1,)
    healthy = explain_trace(made.made_trace(4, 4, 16, 20))[1].what_if.no_delay_s
    slow_s = explain_trace(trace)[1].what_if.no_delay_s
    assert event.lost_s == pytest.approx(float((slow_s - healthy).sum()), rel=0.05)


def test_the_plans_win_what_they_say(made: ModuleType) -> None:
    """A job with the devices replaced, or with the layers cut anew, is made up and replayed."""
    verdict = verdict_of(made.made_trace(4, 4, 16, 2, slow={(2, 1): 2.0}))
    assert verdict.plan is not None and verdict.plan.present is not None
    best, other = verdict.plan.plans
    assert best.actions[0].kind == "restart" and "dp2/stage1 (rank 9)" in best.actions[0].text
    replaced = explain_trace(made.made_trace(4, 4, 16, 2))[1].what_if
    assert best.predicted_s == pytest.approx(float(replaced.no_delay_s.mean()), rel=0.01)
    assert other.actions[0].kind == "split" and other.layout.split[2] < 16 == other.layout.split[2] + sum(
        m - 16 for i, m in enumerate(other.layout.split) if i != 2
    )
    assert best.predicted_s < other.predicted_s < verdict.plan.present.predicted_s and best.bound_s is not None and best.bound_s <= best.predicted_s


@pytest.mark.parametrize("factor", [1.4, 2.0])
def test_a_long_last_stage_is_design_and_a_cut_cures_it(made: ModuleType, factor: float) -> None:
    verdict = verdict_of(made.made_trace(4, 3, 12, 4, stage_work=(1, 1, 1, factor)))
    (event,) = verdict.events
    assert (verdict.verdict, event.kind, event.cause) == ("not_hardware", "level_shift", "stage_imbalance")
    assert named(verdict) == [("stage", "3")] and event.suspects[0].slowdown == pytest.approx(factor, rel=0.02)
    assert verdict.plan is not None and verdict.plan.present is not None
    (plan,) = verdict.plan.plans
    assert plan.actions[0].kind == "relayer"
    # 8 layers a stage are assumed, and the last stage's extra is no layers: this cut, made up, takes as long as predicted.
    layers = [stage.num_layers for stage in plan.layout.replicas[0].stages]
    assert sum(layers) == 32 and layers[3] < 8
    work = [layers[s] / 8 + (factor - 1 if s == 3 else 0) for s in range(4)]
    cut = explain_trace(made.made_trace(4, 3, 12, 4, stage_work=work))[1].what_if
    assert plan.predicted_s == pytest.approx(float(cut.no_delay_s.mean()), rel=0.01)


def test_uneven_lengths_are_not_hardware_and_a_long_stage_comes_second(made: ModuleType) -> None:
    verdict = verdict_of(made.made_trace(4, 8, 8, 6, lengths=0.4))
    assert (verdict.verdict, [e.cause for e in verdict.events], named(verdict)) == ("not_hardware", ["sequence_imbalance"], [])
    assert "sequence lengths are uneven" in verdict.summary and "packing sequences" in verdict.summary
    both = verdict_of(made.made_trace(2, 16, 8, 6, lengths=0.4, stage_work=(1, 1.5)))
    assert [e.cause for e in both.events] == ["sequence_imbalance", "stage_imbalance"] and both.verdict == "not_hardware"


def test_a_mixture_names_the_worker_first(made: ModuleType) -> None:
    verdict = verdict_of(made.made_trace(4, 8, 8, 6, lengths=0.4, stage_work=(1, 1, 1, 1.7), slow={(5, 3): 1.5, (0, 1): 1.5}))
    assert verdict.verdict == "fail_slow" and verdict.events[0].cause == "compute"
    assert sorted(named(verdict)[:2]) == [("group", "dp0/stage1"), ("group", "dp5/stage3")]
    assert {event.cause for event in verdict.events[1:]} <= {"sequence_imbalance", "stage_imbalance"} and len(verdict.events) > 1


def test_a_slow_link_is_communication(made: ModuleType) -> None:
    verdict = verdict_of(made.made_trace(4, 4, 8, 4, slow_links={(1, 1): 60.0}))
    (event,) = verdict.events
    assert (event.kind, event.cause, named(verdict)) == ("fail_slow", "communication", [("link", "dp1/stage1-dp1/stage2")])
    assert event.suspects[0].component.ranks == (5, 6)


def late(trace: OpTrace, dp: int, stage: int, seconds: float) -> OpTrace:
    """The same job in which one worker's host begins each backward pass of its first stage's queue late: everything after it moves."""
    start = trace.start_s.astype(np.float64)
    mine = (trace.dp == dp) & (trace.stage == stage) & (trace.op == TraceOp.OPTIMIZER)
    return replace(trace, start_s=start + mine * seconds)


def test_a_late_host_is_the_host(made: ModuleType) -> None:
    verdict = verdict_of(late(made.made_trace(2, 3, 8, 4), 1, 0, 0.5))
    (event,) = verdict.events
    assert (event.kind, event.cause, named(verdict)) == ("fail_slow", "host", [("group", "dp1/stage0")])
    assert verdict.what_if is not None and verdict.what_if["launch_slowdown"] > 1.1


def test_one_replica_cannot_tell(made: ModuleType) -> None:
    verdict = verdict_of(made.made_trace(4, 1, 12, 4, stage_work=(1, 1, 1, 1.8)))
    assert verdict.verdict == "inconclusive" and verdict.events[0].cause == "unknown" and named(verdict) == []
    assert "one replica" in " ".join(verdict.events[0].evidence)


def test_shapes_without_pipeline_or_replicas(made: ModuleType) -> None:
    for stages, replicas in ((1, 4), (1, 1), (3, 1)):
        verdict, analysis = explain_trace(made.made_trace(stages, replicas, 4, 3))
        assert verdict.verdict == "healthy" and analysis.what_if.only_worker_s.shape == (replicas, stages, 3)
    alone = verdict_of(made.made_trace(1, 4, 4, 3, slow={(3, 0): 1.6}))
    assert named(alone) == [("group", "dp3/stage0")]


def test_json_is_plain_and_complete(made: ModuleType, tmp_path: Path) -> None:
    verdict = verdict_of(made.made_trace(2, 2, 4, 3, slow={(0, 1): 1.5}))
    path = tmp_path / "verdict.json"
    path.write_bytes(to_json(verdict))
    assert load_verdict(path) == msgspec.convert(msgspec.json.decode(to_json(verdict)), Verdict)
    found: dict[str, Any] = msgspec.json.decode(to_json(verdict))["what_if"]
    assert {"slowdown", "by_optype", "by_stage", "by_dp_rank", "by_worker", "m_w", "m_s", "per_step_slowdown", "time_s"} <= found.keys()
    assert found["by_worker"].keys() == {"dp0/stage0", "dp0/stage1", "dp1/stage0", "dp1/stage1"}
    assert (
        max(found["by_worker"], key=found["by_worker"].get) == "dp0/stage1" == max(found["won_s"]["by_worker"], key=found["won_s"]["by_worker"].get)
    )
    assert found["won_gpu_hours"]["by_stage"]["1"] == pytest.approx(found["won_s"]["by_stage"]["1"] * 3 * 4 / 3600)
    assert list(found["per_step_slowdown"]) == ["0", "1", "2"]


def test_the_replay_is_added_to_a_runs_verdict(tmp_path: Path) -> None:
    run = synthetic_run.write_run(tmp_path / "run")
    before = Verdict(source=Source(path=str(run), format="lurcher", num_iterations=70, num_ranks=8), verdict="healthy", summary="")
    after = with_replay(before, run)
    assert after.what_if is not None and max(after.what_if["by_worker"], key=after.what_if["by_worker"].get) == "dp1/stage0"
    bare = synthetic_run.write_run(tmp_path / "bare", with_events=False)
    assert with_replay(before, bare) is before
