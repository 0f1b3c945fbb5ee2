"""The verdict: mapping, sentence, throughput rule, and verdict.json key for key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.analyze import verdict as v
from lurcher.analyze.values import EventKind
from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.records import ITERATION, Action, Cause, Component, Place, Plan, Reconfiguration

LAYOUT = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)
SOURCE = v.Source(path="runs/a", format="lurcher", num_iterations=70, num_ranks=8)
KINDS: tuple[EventKind, ...] = ("fail_slow", "burst", "drift", "level_shift", "restart", "fail_stop", "hang")
CAUSES: tuple[Cause, ...] = ("compute", "communication", "input", "host", "workload", "stage_imbalance", "sequence_imbalance", "unknown")
SUSPECT = v.suspect_of(Component.of_rank(5), "compute", 1.79, 0.97, {5: Place(5, "node-b", 1, "cpu")})


def event(kind: EventKind = "fail_slow", cause: Cause = "compute", **over: object) -> v.VerdictEvent:
    base = {
        "kind": kind,
        "onset_iteration": 25,
        "end_iteration": 51,
        "detected_iteration": 31,
        "slowdown": 1.55,
        "lost_s": 21.5,
        "cause": cause,
    }
    return v.VerdictEvent(**(base | over))  # type: ignore[arg-type]


def a_plan(kind: str = "split") -> Plan:
    return Plan(LAYOUT.with_split((20, 12)), (Action(kind, "micro-batches 16/16 -> 20/12"),), 2.0, 1.5, 1.4, 0.2, 0, "beats the present layout")  # type: ignore[arg-type]


def full() -> v.Verdict:
    applied = Reconfiguration(a_plan(), 1, 34, 0.21, 0, "applied", "gain 1.33")
    reverted = Reconfiguration(a_plan(), 2, 60, 0.2, 0, "reverted", "rank 5 is healthy again")
    rates = v.Throughput(healthy_iter_per_min=40, slow_iter_per_min=26, mitigated_iter_per_min=34, recovered_iter_per_min=40)
    return v.build_verdict(
        source=SOURCE,
        events=[event(suspects=(SUSPECT,), validated=True, evidence=("busy x1.79 of its own history",))],
        throughput=rates,
        plans=[a_plan()],
        present=LAYOUT,
        reconfigurations=[applied, reverted],
        emulated=True,
        wall_s=120.5,
    )


def mapping(pairs: list[tuple[EventKind, Cause]]) -> str:
    """DESIGN section 3, written down a second time."""
    work = ("workload", "stage_imbalance", "sequence_imbalance")
    if any(kind == "fail_slow" for kind, _ in pairs):
        return "fail_slow"
    if any(kind in ("fail_stop", "hang") for kind, _ in pairs):
        return "fail_stop"
    if any(kind in ("level_shift", "drift") and cause in work for kind, cause in pairs):
        return "not_hardware"
    if any(kind == "level_shift" for kind, _ in pairs):
        return "inconclusive"
    return "healthy"


PAIRS = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(CAUSES)), max_size=6)


@given(PAIRS)
def test_mapping(pairs: list[tuple[EventKind, Cause]]) -> None:
    assert v.verdict_of([event(k, c) for k, c in pairs]) == mapping(pairs)


@given(PAIRS, st.randoms())
def test_verdict_is_blind_to_order_and_never_softened_by_more_events(pairs: list[tuple[EventKind, Cause]], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    rank = {"healthy": 0, "inconclusive": 1, "not_hardware": 2, "fail_stop": 3, "fail_slow": 4}
    verdict = v.verdict_of([event(k, c) for k, c in pairs])
    assert v.verdict_of([event(k, c) for k, c in shuffled]) == verdict
    assert rank[v.verdict_of([event(k, c) for k, c in pairs[:-1]])] <= rank[verdict]


@given(PAIRS, st.booleans(), st.booleans(), st.booleans())
def test_every_verdict_has_one_sentence_and_survives_json(pairs: list[tuple[EventKind, Cause]], lasting: bool, named: bool, validated: bool) -> None:
    events = [event(k, c, end_iteration=None if lasting else 51, suspects=(SUSPECT,) if named else (), validated=validated) for k, c in pairs]
    made = v.build_verdict(source=SOURCE, events=events)
    assert made.summary.endswith(".")
    assert "\n" not in made.summary and ".." not in made.summary
    assert msgspec.convert(json.loads(v.to_json(made)), v.Verdict) == made


def test_keys_are_those_of_the_schema_and_in_its_order() -> None:
    document = json.loads(v.to_json(full()))
    assert list(document) == [
        "schema", "source", "verdict", "summary", "events", "what_if", "plan", "reconfigurations", "throughput", "copies",
        "verification", "wall_s",
    ]  # fmt: skip
    assert document["schema"] == "lurcher/verdict/1"
    assert list(document["source"]) == ["path", "format", "num_iterations", "num_ranks"]
    (one,) = document["events"]
    assert list(one) == [
        "kind", "onset_iteration", "end_iteration", "detected_iteration", "slowdown", "lost_s", "cause", "suspects", "validated", "evidence",
    ]  # fmt: skip
    (suspect,) = one["suspects"]
    assert list(suspect) == ["component", "cause", "slowdown", "confidence"]
    assert list(suspect["component"]) == ["kind", "id", "ranks", "places"]
    assert suspect["component"]["ranks"] == [5]
    assert suspect["component"]["places"][0]["host"] == "node-b"
    assert list(document["throughput"]) == ["healthy_iter_per_min", "slow_iter_per_min", "mitigated_iter_per_min", "recovered_iter_per_min"]
    assert list(document["plan"]) == ["schema", "present", "plans"]
    assert document["plan"]["schema"] == "lurcher/plan/1"
    assert list(document["plan"]["plans"][0]) == [
        "predicted_s", "bound_s", "gap", "pause_s", "bytes_moved", "layout", "actions", "reason",
    ]  # fmt: skip
    empty = json.loads(v.to_json(v.build_verdict(source=SOURCE, events=[])))
    assert list(empty) == list(document)
    assert empty["what_if"] is None and empty["plan"] is None and empty["throughput"]["slow_iter_per_min"] is None


def test_sentence_answers_the_three_questions_in_order() -> None:
    text = full().summary
    order = ["real fault, not the workload", "rank 5 (node-b, cpu)", "computes", "x1.79", "from iteration 25 to 51", "21.5 s",
             "emulated", "0.97", "micro-batches 16/16 -> 20/12", "26.0 to 34.0", "x1.31", "predicted x1.33", "undone from iteration 60"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_sentences_of_the_other_verdicts() -> None:
    def said(*events: v.VerdictEvent, **over: object) -> str:
        return v.build_verdict(source=SOURCE, events=events, **over).summary  # type: ignore[arg-type]

    assert said().startswith("Healthy: no lasting slowdown in 70 iterations of 8 ranks")
    assert "1 short burst, up to x1.55 from iteration 25 to 51" in said(event("burst"))
    assert said(event("level_shift", "sequence_imbalance")).startswith("Not hardware: the micro-batches are of uneven length")
    assert said(event("level_shift", "unknown", end_iteration=None)).startswith("Not enough evidence")
    assert "hangs at iteration 25" in said(event("hang"))
    assert "no part can be named" in said(event())
    assert "no benchmark has tested it" in said(event(suspects=(SUSPECT,)))
    assert "nothing was changed; recommended: micro-batches 16/16 -> 20/12, predicted x1.33" in said(event(), plans=[a_plan()], present=LAYOUT)
    assert "recommended" not in said(event(), plans=[a_plan("keep")], present=LAYOUT)
    assert "2 slow periods" in said(event(), event(onset_iteration=60))


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    v.save_verdict(path, full())
    assert v.load_verdict(path) == full()
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]
    path.write_bytes(v.to_json(full()).replace(b'"verdict": "fail_slow"', b'"verdict": "fail_slow", "newer_key": 1'))
    assert v.load_verdict(path) == full()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no JSON"),
        (b"[]", "has schema None"),
        (b'{"schema": "lurcher/verdict/2"}', "lurcher/verdict/2"),
        (b'{"schema": "lurcher/verdict/1"}', "does not hold"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "verdict.json"
    with pytest.raises(UserError, match="give the verdict.json"):
        v.load_verdict(path)
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        v.load_verdict(path)
    assert "\n" not in str(caught.value)


def test_several_verdicts_and_unknown_bounds() -> None:
    both = json.loads(v.verdicts_to_json([full(), full()]))
    assert both["schema"] == "lurcher/verdicts/1" and len(both["verdicts"]) == 2
    boundless = msgspec.structs.replace(a_plan(), bound_s=float("nan"))
    section = v.plan_section([boundless], LAYOUT)
    assert section is not None and section.plans[0].bound_s is None
    assert v.plan_section([]) is None


def story() -> dict[int, float]:
    """1.0 s healthy, 2.0 s slow from 20, a pause iteration of 9 s at 26, 1.25 s on the new layout from 30, 1.0 s again from 61."""
    durations = {}
    for i in range(80):
        durations[i] = 1.0 if i < 20 or i >= 61 else 2.0 if i < 30 else 1.25
    durations |= {0: 50.0, 1: 9.0, 2: 9.0, 26: 9.0, 30: 7.0, 61: 7.0}
    return durations


def test_throughput_by_phase() -> None:
    rates = v.throughput(story(), 20, 55, 30, 61, paused={26})
    assert rates == v.Throughput(healthy_iter_per_min=60, slow_iter_per_min=30, mitigated_iter_per_min=48, recovered_iter_per_min=60)


def test_windows_leave_out_the_first_iteration_on_a_new_layout() -> None:
    short = {i: d for i, d in story().items() if i <= 31}
    rates = v.throughput(short, 20, None, 30, None)
    assert rates.mitigated_iter_per_min == 48
    assert rates.recovered_iter_per_min is None
    assert v.throughput({i: d for i, d in story().items() if i <= 30}, 20, None, 30).mitigated_iter_per_min is None


def test_throughput_without_a_change_or_without_a_fault() -> None:
    unhandled = v.throughput(story(), 20, 60)
    assert unhandled.mitigated_iter_per_min is None
    assert unhandled.recovered_iter_per_min == 60
    assert v.throughput(dict.fromkeys(range(5), 2.0), None, None) == v.Throughput(healthy_iter_per_min=30)
    assert v.throughput({}, None, None) == v.Throughput()
    # 13 before the onset: one warm-up iteration is left out so that twelve remain.
    few = {i: (9.0 if i == 0 else 1.0 if i < 13 else 2.0) for i in range(20)}
    assert v.throughput(few, 13, None).healthy_iter_per_min == 60


def test_lost_seconds() -> None:
    assert v.lost_s({1: 1.0, 2: 2.0, 3: 2.5, 4: 1.0}, 1.0, 2, 3) == pytest.approx(2.5)
    assert v.lost_s({1: 1.0, 2: 2.0, 3: 2.5}, {2: 1.5, 3: 1.5}, 2, None) == pytest.approx(1.5)
    assert v.lost_s({1: 0.5}, 1.0, 1, None) == 0.0


def test_durations_are_the_median_over_ranks() -> None:
    rows = np.zeros(6, dtype=ITERATION)
    rows["index"] = [1, 0, 1, 0, 1, 2]
    rows["duration_s"] = [1.0, 3.0, 1.1, 3.0, 9.0, np.nan]
    assert v.durations_by_iteration(rows) == {0: 3.0, 1: 1.1}
    assert v.durations_by_iteration(rows[:0]) == {}


def test_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import lurcher.analyze.verdict, lurcher.track.reduce, lurcher.detect.default, lurcher.localize.cohort, lurcher.validate.judge\n"
        "bad = [m for m in ('pyarrow', 'plotly', 'scipy', 'rich') if m in sys.modules]\n"
        "assert not bad, bad\n"
    )
    src = Path(__file__).parents[2] / "src"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(src)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
