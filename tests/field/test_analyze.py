"""`lurcher analyze` on logs of others, held against the answers that lie beside them: what must be found, what must not be said."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.values import Verdict, VerdictEvent
from lurcher.ingest import read_logs
from lurcher.ingest.log import Log

SERIES = [
    "megatron_ci/gpt3_15b_h100.csv",
    "megatron_ci/gpt3_15b_h100.log",
    "megatron_ci/gpt3_15b_a100_lts.csv",
    "megatron_ci/deepseekv3_gb200.csv",
    "megatron_ci/mixtral_8x7b_h100.csv",
    "megatron_ci/gpt3_weekly_fp8_gb200.csv",
    "megatron_ci/nemotron3_super_gb200.csv",
    "nanogpt/steady_1b.csv",
    "nanogpt/steady_140ms.csv",
    "nanogpt/optimiser_every_10.csv",
    "nanogpt/schedule_shift_jitter.csv",
    "nanogpt/schedule_shift_sibling_a.csv",
    "nanogpt/schedule_shift_sibling_b.csv",
    "bloom/bloom176b_2022-04-28_slow_gpu.json",
    "formats/torchtitan.log",
    "formats/torchtitan_no_color.log",
    "formats/deepspeed.log",
    "formats/nanotron.log",
    "formats/modded_nanogpt.log",
]
WORKERS = ["alibaba_pai/job_1_norm.csv", "alibaba_pai/job_2_norm.csv"]
QUIET = [
    "megatron_ci/gpt3_15b_a100_lts.csv",
    "megatron_ci/mixtral_8x7b_h100.csv",
    "nanogpt/steady_1b.csv",
    "nanogpt/steady_140ms.csv",
    "nanogpt/optimiser_every_10.csv",
    "alibaba_pai/job_2_norm.csv",
]
"""Nothing happens in these, and nothing may be said."""


def truth(folder: Path, name: str) -> dict[str, Any]:
    files: dict[str, dict[str, Any]] = json.loads((folder / "truth.json").read_text(encoding="utf-8"))["files"]
    return files[files[name].get("same_truth_as", name)]


@functools.cache
def log_of(folder: Path, name: str) -> Log:
    (log,) = read_logs([folder / name])
    return log


@functools.cache
def verdict_of(folder: Path, name: str) -> Verdict:
    return analyze_log(log_of(folder, name))


def matching(verdict: Verdict, known: dict[str, Any]) -> VerdictEvent | None:
    """The event of the verdict that begins where the answer says."""
    onset, tolerance = known.get("onset_iteration", known.get("onset_time_s")), known.get("tolerance_iterations", known.get("tolerance_s"))
    near = [e for e in verdict.events if e.kind != "restart" and abs(e.onset_iteration - onset) <= tolerance]
    return min(near, key=lambda e: abs(e.onset_iteration - onset), default=None)


@pytest.mark.parametrize("name", SERIES + WORKERS)
def test_what_must_be_found_is_found(name: str, shared_data: Path) -> None:
    verdict = verdict_of(shared_data, name)
    for known in truth(shared_data, name)["events"]:
        if not known["required"]:
            continue
        event = matching(verdict, known)
        assert event is not None, (known, verdict.events)
        end, tolerance = known.get("end_iteration", known.get("end_time_s")), known.get("tolerance_iterations", known.get("tolerance_s"))
        if end is None:
            assert event.kind in ("fail_slow", "level_shift") and event.end_iteration is None
        else:
            assert event.kind == known["kind"]
            assert event.end_iteration is not None and abs(event.end_iteration - end) <= tolerance
        # A burst has no level: the answer gives its median, on the samples that it counts as slow.
        assert event.slowdown == pytest.approx(known["slowdown"], abs=0.02 if known["kind"] == "fail_slow" else 0.05)
        if "worker" in known:
            assert [s.component.ranks for s in event.suspects] == [(known["worker"],)]


@pytest.mark.parametrize("name", SERIES + WORKERS)
def test_nothing_is_called_a_fault_that_is_none(name: str, shared_data: Path) -> None:
    """Schedules, humps, warm-up and bursts are never `fail_slow`, and nothing is `fail_slow` but what the answers call so."""
    verdict = verdict_of(shared_data, name)
    faults = [known for known in truth(shared_data, name)["events"] if known["kind"] == "fail_slow"]
    for event in verdict.events:
        if event.kind == "fail_slow":
            assert any(matching(verdict, known) is event for known in faults), event
    assert (verdict.verdict == "fail_slow") == any(e.kind == "fail_slow" for e in verdict.events)


@pytest.mark.parametrize("name", SERIES)
def test_a_lone_series_names_nobody_and_no_cause(name: str, shared_data: Path) -> None:
    for event in verdict_of(shared_data, name).events:
        assert event.suspects == () and event.cause == "unknown"


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_said_where_nothing_happens(name: str, shared_data: Path) -> None:
    verdict = verdict_of(shared_data, name)
    assert verdict.events == () and verdict.verdict == "healthy"


def test_at_most_one_event_where_none_is_known(shared_data: Path) -> None:
    """Over all other series: an event that no answer and no restart accounts for is a false one."""
    for name in SERIES:
        known = truth(shared_data, name)
        verdict = verdict_of(shared_data, name)
        unknown = [
            e
            for e in verdict.events
            if e.kind != "restart"
            and not any(
                k["onset_iteration"] - k["tolerance_iterations"] - 3 * known.get("interval", 1)
                <= e.onset_iteration
                <= (k["end_iteration"] or 10**9) + k["tolerance_iterations"]
                for k in known["events"]
            )
        ]
        assert unknown == [], name


def test_periodic_work_is_one_line(shared_data: Path) -> None:
    verdict = verdict_of(shared_data, "nanogpt/optimiser_every_10.csv")
    period = truth(shared_data, "nanogpt/optimiser_every_10.csv")["periodic"][0]
    assert (
        verdict.summary.count("every ") == 1
        and f"every {period['period']}th iteration takes x{period['level_s'] / period['other_level_s']:.1f}" in verdict.summary
    )


def test_restarts_are_recognised(shared_data: Path) -> None:
    """Those that have a slow sample; of the others only the fall is there to see."""
    name = "megatron_ci/nemotron3_super_gb200.csv"
    known = truth(shared_data, name)["restarts"]
    at = [row[0] for row in known["rows"]]
    with_sample = [iteration for iteration, seconds, after in known["rows"] if seconds is not None and after is not None]
    said = [e.onset_iteration for e in verdict_of(shared_data, name).events if e.kind == "restart"]
    assert all(any(abs(iteration - s) <= known["tolerance_iterations"] for s in said) for iteration in with_sample)
    assert all(any(abs(iteration - s) <= known["tolerance_iterations"] for iteration in at) for s in said)


@pytest.mark.parametrize("name", SERIES + WORKERS)
def test_detected_when_it_says_and_no_sooner(name: str, shared_data: Path) -> None:
    """Cut after `detected_iteration` the event is there; one sample shorter it is not."""
    log = log_of(shared_data, name)
    moments = np.unique(log.rows["index"])
    for event in verdict_of(shared_data, name).events:
        place = int(np.searchsorted(moments, event.detected_iteration))
        with_it, without = (analyze_log(replace(log, rows=log.rows[log.rows["index"] < m])) for m in (event.detected_iteration + 1, moments[place]))
        assert any(e.detected_iteration == event.detected_iteration for e in with_it.events), event
        assert not any(e.detected_iteration == event.detected_iteration for e in without.events), event
        same = [e for e in without.events if e.kind != "restart" and abs(e.onset_iteration - event.onset_iteration) <= 3 * log.stride]
        assert event.kind == "restart" or same == [], (event, same)


def test_with_its_siblings_a_schedule_is_no_event(shared_data: Path) -> None:
    folder = shared_data / "nanogpt"
    names = ("jitter", "sibling_a", "sibling_b")
    logs = {name: log_of(shared_data, f"nanogpt/schedule_shift_{name}.csv") for name in names}
    for name in names:
        verdict = analyze_log(logs[name], [log for other, log in logs.items() if other != name])
        assert verdict.events == (), (folder, name)


def test_quiet_passing_runs_stay_quiet(shared_data: Path) -> None:
    """At most one false event per 20,000 healthy steps, over the runs classed as quiet and the nanoGPT runs."""
    path = shared_data / "megatron_ci" / "healthy_sample.json"
    screened = truth(shared_data, "megatron_ci/healthy_sample.json")["series"]
    steps, false = 0, []
    for log in read_logs([path]):
        name = log.path.partition("#")[2]
        verdict = analyze_log(log)
        assert all(event.suspects == () for event in verdict.events)
        if screened[name]["screen"] != "quiet":
            continue
        steps += len(log.rows)
        assert verdict.verdict != "fail_slow", name
        false += [(name, event) for event in verdict.events]
    for name in ("steady_1b", "steady_140ms", "optimiser_every_10"):
        steps += len(log_of(shared_data, f"nanogpt/{name}.csv").rows)
        false += [(name, event) for event in verdict_of(shared_data, f"nanogpt/{name}.csv").events]
    assert len(false) <= steps / 20_000, false


def test_worker_6_is_not_still_slow(shared_data: Path) -> None:
    (event,) = verdict_of(shared_data, "alibaba_pai/job_1_norm.csv").events
    assert event.end_iteration is not None and event.end_iteration <= 1970
    # Durations have no unit there: what is lost is counted in the seconds between samples.
    assert 0.0 < event.lost_s < event.end_iteration - event.onset_iteration + 10
    assert verdict_of(shared_data, "alibaba_pai/job_1_norm.csv").throughput.healthy_iter_per_min is None
