"""lurcher as a library: the same answers as from the command line, from arrays and paths; online one call an iteration; light to import."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lurcher
from lurcher.detect.default import DefaultDetector
from lurcher.errors import UserError
from lurcher.records import ChangePoint

REPO = Path(__file__).parents[2]
GUIDE = REPO / "docs" / "guides" / "library.md"


def slowed(num: int = 600, factor: float = 1.2, seed: int = 1) -> np.ndarray:
    values = 1.0 + 0.01 * np.random.default_rng(seed).standard_normal(num)
    values[num // 3 : 2 * num // 3] *= factor
    return values


def test_importing_is_light_and_the_call_survives_the_package(tmp_path: Path) -> None:
    """`lurcher.analyze` is a package too: importing it, before or after, must not take the function away."""
    code = (
        "import sys, lurcher\n"
        "heavy = [m for m in ('numpy', 'pyarrow', 'torch', 'plotly', 'click') if m in sys.modules]\n"
        "a = lurcher.analyze([1.0, 2.0]).verdict\n"
        "import lurcher.analyze.verdict\n"
        "from lurcher import analyze\n"
        "print(heavy, a, analyze([1.0, 2.0]).verdict, lurcher.analyze.verdict.verdict_of([]), 'torch' in sys.modules, 'plotly' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, cwd=REPO / "src")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[] healthy healthy healthy False False"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lurcher.nothing


def test_arrays_lists_and_files_give_the_same(tmp_path: Path) -> None:
    values = slowed()
    path = tmp_path / "a.csv"
    path.write_text("iteration,duration_s\n" + "".join(f"{i},{float(v)!r}\n" for i, v in enumerate(values)))
    array, plain, file, text = lurcher.analyze(values), lurcher.analyze(values.tolist()), lurcher.analyze(path), lurcher.analyze(str(path))
    assert array.verdict == "fail_slow" and array.events == plain.events == file.events == text.events
    (event,) = array.events
    assert abs(event.onset_iteration - 200) <= 1 and event.slowdown == pytest.approx(1.2, abs=0.01)
    assert (array.source.format, file.source.format, file.source.path) == ("arrays", "csv", str(path))


def test_siblings_as_arrays_as_a_list_of_them_and_as_files(tmp_path: Path) -> None:
    schedule = np.where(np.arange(600) < 300, 1.0, 1.7)
    mine, other, third = (slowed(600, 1.0, seed) * schedule for seed in range(3))
    assert lurcher.analyze(mine).verdict == "inconclusive"
    path = tmp_path / "b.csv"
    path.write_text("iteration,duration_s\n" + "".join(f"{i},{float(v)!r}\n" for i, v in enumerate(other)))
    for baseline in (other, other.tolist(), [other, third], [other.tolist(), third.tolist()], path, [str(path), third]):
        assert lurcher.analyze(mine, baseline=baseline).events == ()


def test_known_work_is_no_fault() -> None:
    rng = np.random.default_rng(5)
    tokens = np.where(np.arange(900) < 450, 1000.0, 1500.0) * rng.uniform(0.8, 1.2, 900)
    durations = tokens / 1000.0 * (1.0 + 0.005 * rng.standard_normal(900))
    assert lurcher.analyze(durations).verdict != "healthy"
    assert lurcher.analyze(durations, num_tokens=tokens, sum_len_sq=tokens**2).verdict == "healthy"


def test_ranks_beside_the_durations() -> None:
    rng = np.random.default_rng(6)
    rank, values = np.tile(np.arange(8), 300), 1.0 + 0.01 * rng.standard_normal(2400)
    values[(rank == 5) & (np.arange(2400) >= 8 * 150)] *= 1.3
    verdict = lurcher.analyze(values, rank=rank)
    assert verdict.source.num_ranks == 8 and verdict.source.num_iterations == 300
    (event,) = [e for e in verdict.events if e.kind == "fail_slow"]
    assert event.suspects[0].component.ranks == (5,) and abs(event.onset_iteration - 150) <= 1
    by_rank = np.argsort(rank, kind="stable")  # rank after rank instead of iteration after iteration
    assert lurcher.analyze(values[by_rank], rank=rank[by_rank]).events == verdict.events


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"durations_s": []}, "is empty"),
        ({"durations_s": ["a"]}, "does not hold numbers"),
        ({"durations_s": [[1.0, 2.0]]}, r"shape \(1, 2\)"),
        ({"durations_s": [1.0, 2.0], "num_tokens": [1.0]}, "as many as durations"),
        ({"durations_s": [0.0, float("nan")]}, "none of 2 iterations"),
        ({"durations_s": [1.0, 2.0], "rank": [0, -1]}, "rank holds -1 at entry 2"),
        ({"durations_s": "/nowhere/at/all"}, "does not exist"),
        ({"durations_s": "/nowhere/at/all", "rank": [0]}, "is a file"),
    ],
)
def test_bad_input_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        lurcher.analyze(**arguments)
    assert "\n" not in str(caught.value)


def changes(detector: Any, values: list[float], *work: list[float]) -> list[ChangePoint]:
    return [c for row in zip(values, *work, strict=True) if (c := detector.update(*row)) is not None]


def test_online_is_the_default_detector_on_durations() -> None:
    values = slowed().tolist()
    plain = DefaultDetector()
    expected = [c for i, v in enumerate(values) if (c := plain.update(v, i)) is not None]
    watch = lurcher.Detector()
    assert changes(watch, values) == expected
    assert [c.direction for c in expected if c.tier == "confirmed"] == ["slower", "faster"]
    assert watch.num_iterations == 600 and watch.num_ignored == 0 and watch.reason


def test_online_with_work_speaks_seconds() -> None:
    """Work varies by a fifth, and the fault is a tenth: only with the work it is seen at once."""
    rng = np.random.default_rng(7)
    tokens = rng.uniform(800, 1200, 600)
    durations = slowed(factor=1.1) * (0.5 + tokens / 1000.0)
    assert not [c for c in changes(lurcher.Detector(), durations.tolist()) if c.tier == "confirmed" and c.detected_iteration <= 220]
    found = [c for c in changes(lurcher.Detector(), durations.tolist(), tokens.tolist()) if c.tier == "confirmed"]
    assert [c.direction for c in found] == ["slower", "faster"]
    assert abs(found[0].iteration - 200) <= 2 and found[0].detected_iteration <= 220 and found[0].slowdown == pytest.approx(1.1, abs=0.02)
    work = 0.5 + tokens[found[0].detected_iteration] / 1000.0
    assert found[0].before_s == pytest.approx(work, rel=0.03) and found[0].after_s == pytest.approx(1.1 * work, rel=0.03)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.just(0.0) | st.just(-1.0), max_size=40))
def test_what_is_no_time_is_counted_and_changes_nothing(odd: list[float]) -> None:
    clean, dirty = lurcher.Detector(), lurcher.Detector()
    values = slowed(120, 1.0).tolist()
    for value in values[:60]:
        clean.update(value)
        dirty.update(value)
    bad = [x for x in odd if not 0.0 < x < 2000.0]
    assert all(dirty.update(x) is None for x in bad)
    assert dirty.num_ignored == len(bad) and dirty.num_iterations == 60 + len(bad)
    for value in values[60:]:
        assert (clean.update(value) is None) == (dirty.update(value) is None)
    assert clean.reason == dirty.reason


def test_work_at_every_call_or_at_none() -> None:
    for first, second in (((1.0,), (1.0, 100.0)), ((1.0, 100.0), (1.0,))):
        watch = lurcher.Detector()
        watch.update(*first)
        with pytest.raises(UserError, match="at every call or at none"):
            watch.update(*second)


def test_a_pickled_detector_goes_on() -> None:
    values = slowed().tolist()
    watch = lurcher.Detector()
    first = changes(watch, values[:203])
    again = pickle.loads(pickle.dumps(watch))
    assert changes(watch, values[203:]) == changes(again, values[203:])
    assert first[0].tier == "suspect"


def test_the_guide_runs_and_prints_what_it_says() -> None:
    """Every `python` block in turn, in one namespace; a `text` block after it is what it prints."""
    blocks = re.findall(r"^```(python|text)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in blocks:
        if kind == "text":
            assert printed == text
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, str(GUIDE), "exec"), names)
        printed = out.getvalue()
    assert [kind for kind, _ in blocks].count("text") >= 2
