"""The bench's own parts: its series are what they say, its short cuts change nothing, its counts add up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rich.console import Console

from lurcher.detect.default import DefaultDetector
from lurcher.detect.residual import WorkloadResidual
from lurcher.detect.window import SlidingWindow


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[ModuleType, ModuleType, ModuleType, ModuleType]]:
    """bench/ is no package: its files find each other because a script's own folder is on the path."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    import detect
    import detect_corpus
    import detect_run
    import detect_series

    yield detect_series, detect_run, detect_corpus, detect
    sys.path.pop(0)


def test_series_are_seeded_and_seeds_are_apart(bench) -> None:
    series, *_ = bench
    for noise in series.NOISE:
        one = series.healthy(series.REPORTING, noise, 3, 400)
        assert np.array_equal(one, series.healthy(series.REPORTING, noise, 3, 400), equal_nan=True)
        assert not np.array_equal(one, series.healthy(series.TUNING, noise, 3, 400), equal_nan=True)
        assert not np.array_equal(one, series.healthy(series.REPORTING, noise, 4, 400), equal_nan=True)
        assert np.nanmedian(one) == pytest.approx(1.0, abs=0.02)


def test_noise_is_what_its_name_says(bench) -> None:
    series, *_ = bench
    rng = np.random.default_rng(0)
    assert series.gauss3(40_000, rng).std() == pytest.approx(0.03, rel=0.03)
    correlated = series.autoregressive(40_000, rng) - 1
    assert correlated.std() == pytest.approx(0.02, rel=0.1)
    assert np.corrcoef(correlated[1:], correlated[:-1])[0, 1] == pytest.approx(0.7, abs=0.02)
    for seed in range(5):
        _, _, seconds = series.work_of(5_000, np.random.default_rng(seed))
        assert 0.13 <= seconds.std() / seconds.mean() <= 0.27


def test_a_ramp_rises_and_a_fault_ends(bench) -> None:
    series, *_ = bench
    ramp = series.slowdown_of(series.Fault(10, 50, 1.2, "ramp"), 100)
    assert (ramp[:10] == 1).all() and (ramp[60:] == 1).all()
    assert ramp[10] == pytest.approx(1.01) and ramp[29:60] == pytest.approx(1.2)
    step = series.slowdown_of(series.Fault(10, 50, 1.2, "step"), 100)
    assert (step[10:60] == 1.2).all() and step.sum() == pytest.approx(100 + 50 * 0.2)


@pytest.mark.parametrize("noise", ["gauss 3 %", "AR(1) 0.7", "variable length", "all"])
def test_the_kept_state_gives_what_a_whole_walk_gives(bench, noise: str) -> None:
    """The healthy part is walked once for all faults of a trace, and short faults are read off long ones."""
    series, run, *_ = bench
    faults = {(s, "step"): series.Fault(300, 200, s, "step") for s in (1.05, 1.2)}
    found = run.delays(DefaultDetector, noise, series.TUNING, range(3), faults)
    for number in range(3):
        for (slowdown, _), cell in found.items():
            for duration in (30, 200):
                trace = run._Trace(noise, series.TUNING, number, 500)
                short = series.Fault(300, duration, slowdown, "step")
                at = trace.walk(DefaultDetector(), WorkloadResidual(), 0, 300 + duration, short)
                delay = cell.delays[number]
                assert (np.inf if at is None else at - 300) == (delay if delay < duration else np.inf)


def test_false_alarms_are_counted(bench) -> None:
    series, run, *_ = bench
    quiet = list(run.false_alarms(DefaultDetector, "gauss 1 %", series.TUNING, 3_000))[-1]
    assert quiet == (3_000, 0)
    loud = list(run.false_alarms(SlidingWindow, "spikes", series.TUNING, 6_000))[-1]
    assert loud.num_iterations == 6_000 and loud.num_alarms > 0


def test_variable_length_is_silent_and_ten_per_cent_is_found_within_twenty(bench) -> None:
    series, _, _, detect = bench
    sizes = detect.QUICK._replace(traces_variable=15)
    found = detect.Bench(sizes, series.TUNING, ["default"], Console(quiet=True)).variable_length()
    assert [row["slowdown"] for row in found] == ["5%", "10%", "20%"]
    assert all(row["alarms while healthy"] == 0 and row["healthy iterations"] == 15 * 600 for row in found)
    assert found[1]["found within 20"] == found[2]["found within 20"] == 1.0
    assert found[1]["median delay"] <= found[1]["p90"] <= found[1]["worst"] < 20


def test_memory_and_time_do_not_grow_with_the_series(bench) -> None:
    _, run, _, _ = bench
    for with_residual in (False, True):
        kept = run.memory(DefaultDetector, 8_000, 1, with_residual=with_residual)
        assert 0 < kept.held < 100_000
        assert kept.added < 0.1 * kept.held
    took = run.speed(DefaultDetector, 5_000, 1, with_residual=True)
    assert took.last_tenth_us < 3 * took.us
    assert 0 < took.reference_ns < 1e3 * took.us


def test_corpus_has_the_mix_of_table_1(bench) -> None:
    series, _, corpus, _ = bench
    compute, communication = corpus.MIXES
    assert (compute.num_jobs, compute.num_slow) == (392, 4 + 2)
    assert (communication.num_jobs, communication.num_slow) == (107, 1 + 42)
    values, fault = corpus.job(communication, series.REPORTING, 0, 0)
    assert fault is not None and 1.05 <= fault.slowdown <= 5
    assert np.nanmedian(values[fault.onset + 20 : fault.onset + fault.duration]) > 1.03
    assert corpus.job(communication, series.REPORTING, 0, 43)[1] is None
    assert corpus.Score(10, 5, 1, 2).accuracy == pytest.approx(12 / 15)


def test_it_prints_and_writes_its_tables(bench, tmp_path, monkeypatch, capsys) -> None:
    series, _, corpus, detect = bench
    monkeypatch.setattr(detect, "QUICK", detect.Sizes(800, 800, 1, 1, 4, 1, 400))
    monkeypatch.setattr(detect, "MIXES", (corpus.Mix("compute", 8, 2, 1.1, 1.3),))
    monkeypatch.setattr(sys, "argv", ["detect.py", "--quick", "--detector", "default", "--json", str(tmp_path / "out.json")])
    detect.main()
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["seed"] == series.REPORTING
    (silence,) = written["False alarms on healthy iterations"]
    assert silence["alarms"] == 0 and silence["95 % below"] == "3.7e-03"
    assert len(written["Faults found while they last, delays in iterations"]) == 5 * 4 * 2
    assert "GREYHOUND" in capsys.readouterr().out
