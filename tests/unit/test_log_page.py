"""What a log's page and a fleet's page say and draw, and how long series are made short without losing a spike."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.analyze.fleet import fleet, run_line
from lurcher.analyze.from_log import analyze_log
from lurcher.ingest import Log
from lurcher.ingest.arrays import from_arrays
from lurcher.report import FleetRun, render_fleet, render_log
from lurcher.report.buckets import buckets
from lurcher.report.fleet_page import picture
from lurcher.report.load import Series
from lurcher.report.log_facts import log_facts, without_events
from lurcher.report.verdict_view import EventView

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;{{ 7*7 }}</script><!--"


def durations(num: int = 600, factor: float = 1.3, seed: int = 1) -> np.ndarray:
    values = 1.0 + 0.01 * np.random.default_rng(seed).standard_normal(num)
    values[num // 3 : num // 2] *= factor
    return values


def judged(log: Log) -> dict[str, Any]:
    return msgspec.to_builtins(analyze_log(log))


def page_of(log: Log) -> str:
    return render_log(log, judged(log), "1.2.3")


def figures(page: str) -> dict[str, Any]:
    return {name: json.loads(body) for name, body in re.findall(r'<script type="application/json" id="figure-(\w+)">(.*?)</script>', page, re.S)}


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<script.*?</script>", "", page, flags=re.S))


def test_the_three_answers_and_the_event() -> None:
    page = page_of(from_arrays(durations(), name="logs/a.csv"))
    text = text_of(page)
    at = 0
    for words in ("Fail-slow", "A real slowdown", "A real fault, or the workload?", "A real fault. Evidence: x1.", "Which part?", "columns per rank", "What did it cost?", "30 s in iterations 200 to 299",
                  "% of the run's", "Slowdown", "1.30×", "Iteration time", "Events", "fail_slow", "200 – 299", "logs/a.csv", "lurcher 1.2.3"):  # fmt: skip
        at = text.index(words, at)
    (figure,) = figures(page).values()
    observed, level = figure["data"]
    assert observed["x"] == list(range(600))
    assert level["y"][100] == pytest.approx(1.0, abs=0.01) and level["y"][250] == pytest.approx(1.0, abs=0.02)
    shade, upright = figure["layout"]["shapes"]
    assert (shade["x0"], shade["x1"], upright["x0"]) == (199.5, 299.5, 200)
    low, high = figure["layout"]["yaxis"]["range"]
    assert 0.8 < low < 0.98 and 1.32 < high < 1.6


def test_a_healthy_log_says_so() -> None:
    text = text_of(page_of(from_arrays(durations(factor=1.0))))
    for words in ("Healthy", "Neither: no lasting change was found.", "None.", "Nothing that lasts."):
        assert words in text
    assert "Events</h2>" not in text


def test_ranks_are_drawn_where_one_is_suspected() -> None:
    rng = np.random.default_rng(2)
    rank, values = np.tile(np.arange(6), 300), 1.0 + 0.01 * rng.standard_normal(1800)
    values[(rank == 3) & (np.arange(1800) >= 900)] *= 1.4
    page = page_of(from_arrays(values, rank=rank))
    data = figures(page)["ranks"]["data"]
    assert [trace["name"] for trace in data] == ["low", "middle 80 % of the others", "median of the others", "rank 3"]
    by_rank = values.reshape(300, 6)
    others = np.delete(by_rank, 3, axis=1)
    assert data[2]["y"] == pytest.approx(np.median(others, axis=1), abs=1e-5)
    assert data[3]["y"] == pytest.approx(by_rank[:, 3], abs=1e-5)
    assert "rank 3: unknown cause" in text_of(page)


def test_relative_durations_claim_no_seconds(tmp_path: Path) -> None:
    from lurcher.ingest import read_log

    path = tmp_path / "w.csv"
    path.write_text("worker,time,batch_time_norm\n" + "".join(f"{w},{10 * t},{400 + (t * 7 + w) % 9}\n" for t in range(100) for w in range(4)))
    text = text_of(page_of(read_log(path)))
    assert "relative times" in text and "it/min" not in text


def test_hostile_text_stays_text() -> None:
    log = from_arrays(durations(), name=HOSTILE)
    verdict = judged(log)
    verdict["summary"] = HOSTILE
    verdict["events"][0]["evidence"] = [HOSTILE]
    verdict["events"][0]["suspects"] = [
        {"component": {"kind": "rank", "id": HOSTILE, "ranks": [0], "places": []}, "cause": HOSTILE, "slowdown": 1.2, "confidence": 1.0}
    ]
    single = render_log(log, verdict, "1")
    line = run_line(analyze_log(log), 600.0)
    many = render_fleet([FleetRun(log, verdict, line.lost_s, line.inflation)] * 2, {"lost_hours_by_cause": {HOSTILE: 1.0}}, "1")
    for page, num_figures in ((single, 1), (many, 0)):
        own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)  # the page's own two
        assert "<script>alert" not in own and "<img" not in own
        assert len(re.findall(r"<script\b", own)) == num_figures
        assert html.escape(HOSTILE, quote=False).replace("'", "&#39;").replace('"', "&#34;") in own


def test_many_runs_the_costliest_first() -> None:
    logs = [from_arrays(durations(factor=factor, seed=n), name=f"runs/{n}") for n, factor in enumerate((1.0, 1.2, 1.6))]
    verdicts = [analyze_log(log) for log in logs]
    lines = [run_line(verdict, float(log.rows["duration_s"].sum())) for verdict, log in zip(verdicts, logs, strict=True)]
    runs = [FleetRun(log, msgspec.to_builtins(v), line.lost_s, line.inflation) for log, v, line in zip(logs, verdicts, lines, strict=True)]
    page = render_fleet(runs, msgspec.to_builtins(fleet(verdicts, lines)), "1")
    table = page[page.index("<tbody>", page.index("Runs</h2>")) :]
    assert [table.index(f"<code>{n}</code>") for n in (2, 1, 0)] == sorted(table.index(f"<code>{n}</code>") for n in range(3))
    assert "67 %" in page and "of 3 runs" in page and "runs/" in page
    assert len(page) < 60_000 and "Plotly.newPlot" not in page


def test_a_small_picture_spans_the_run() -> None:
    log = from_arrays(durations(5000))
    drawn = picture(log_facts(log, judged(log)))
    points = [tuple(map(float, point.split(","))) for point in drawn.line.split()]
    assert 90 <= len(points) <= 111 and points[0][0] < 5 and points[-1][0] > 214
    ((x, width, kind),) = drawn.bars
    assert kind == "fail_slow" and x == pytest.approx(220 / 3, abs=1) and width == pytest.approx(220 / 6, abs=1)


@given(st.lists(st.floats(0.1, 10) | st.just(float("nan")), min_size=1, max_size=300), st.integers(1, 40))
def test_buckets_lose_nothing(values: list[float], most: int) -> None:
    """Against slices of the list: every value lies in its bucket's range, and a bucket's range is attained."""
    array = np.array(values)
    seen = buckets(np.arange(len(values)), array, most, most)
    assert len(seen.index) <= most or seen.size == 1
    for n in range(len(seen.index)):
        part = array[n * seen.size : (n + 1) * seen.size]
        known = part[np.isfinite(part)]
        if not len(known):
            assert np.isnan([seen.low[n], seen.middle[n], seen.high[n]]).all()
        else:
            assert (seen.low[n], seen.high[n]) == (known.min(), known.max())
            assert seen.middle[n] == pytest.approx(np.median(known))


def test_the_level_without_an_event_that_the_median_rank_does_not_show() -> None:
    series = Series(np.arange(300), np.ones(300), np.ones(300))
    event = EventView("fail_slow", 100, 199, 105, 1.5)
    assert without_events(series, [event]).tolist() == [1.0] * 300
    risen = np.where((series.index >= 100) & (series.index < 200), 1.5, 1.0)
    assert without_events(Series(series.index, risen, risen), [event]) == pytest.approx(1.0)
