"""The HTML report: self-contained, escaped, and whole even where the run is not."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import pytest
import synthetic_run as synthetic
from plotly.offline import get_plotlyjs

from lurcher.report import render_html, write_report
from lurcher.runlog import RunReader, RunWriter

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;{{ 7*7 }}</script><!--"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_html(RunReader(synthetic.write_run(tmp_path_factory.mktemp("page") / "run")))


def figures(page: str) -> dict[str, dict]:  # type: ignore[type-arg]
    return {name: json.loads(body) for name, body in re.findall(r'<script type="application/json" id="figure-(\w+)">(.*?)</script>', page, re.S)}


def without_plotly(page: str) -> str:
    assert page.count(get_plotlyjs()) == 1
    return page.replace(get_plotlyjs(), "")


def test_nothing_is_fetched(page: str) -> None:
    own = without_plotly(page)
    assert not re.search(r"<(link|iframe|object|embed|img|base)\b|\bsrc=|@import|url\(|https?://", own)
    assert len(page.encode()) < 6_000_000


def test_only_the_two_scripts_named_by_the_policy_can_run(page: str) -> None:
    allowed = set(re.findall(r"'(sha256-[^']+)'", page[:2000]))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert {"sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts} == allowed
    assert len(scripts) == 2
    assert "default-src 'none'" in page[:2000]


def test_the_story_is_told_in_order(page: str) -> None:
    text = html.unescape(without_plotly(page))
    wanted = ("Fail-slow", "emulated devices", "A real fault, not the workload: rank 5", "A real fault, or the workload?", "Which part?", "What was changed, and what did it win?",
              "Healthy", "Delay to detection", "Iteration time", "Slowdown of each rank", "1.79×", "Pipeline", "What was changed", "Where each rank's time went", "Events", "Every decision, with its reason")  # fmt: skip
    at = 0
    for words in wanted:
        at = text.index(words, at)
    for reason in ("REBALANCE: 3.4 s lost so far exceed the 2.8 s that checking and switching cost", "OBSERVE: rank 5 recovered"):
        assert reason in text


def test_figures_hold_what_they_say(page: str) -> None:
    found = figures(page)
    assert set(found) == {"iterations", "gantt", "ranks"}
    expected, observed = found["iterations"]["data"]
    assert len(observed["x"]) == synthetic.NUM_ITERATIONS
    assert expected["y"][:5] == [None] * 5
    assert [note["text"] for note in found["iterations"]["layout"]["annotations"]] == [f"<b>{n}</b>" for n in range(1, 9)]
    spans = {tuple(found["gantt"]["layout"][axis]["range"]) for axis in ("xaxis", "xaxis2", "xaxis3")}
    assert len(spans) == 1  # one time scale
    chunks = sum(len(trace["x"]) for trace in found["gantt"]["data"] if trace["name"] in ("forward", "backward") and trace["xaxis"] == "x")
    assert chunks == 2 * 16 * 2 * 4
    assert sum(trace["showlegend"] for trace in found["gantt"]["data"]) == len({trace["name"] for trace in found["gantt"]["data"]})
    assert max(max(trace["x"]) for trace in found["ranks"]["data"]) == pytest.approx(1.04, abs=0.05)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    head = synthetic.header(hosts=("node-a", HOSTILE), command=HOSTILE, injected=(HOSTILE,))
    page = render_html(RunReader(synthetic.write_run(tmp_path / "run", head=head, reason_suffix=HOSTILE)))
    own = without_plotly(page)
    assert "<script>alert" not in own
    assert "<img" not in own
    assert len(re.findall(r"<script\b", own)) == 2 + 3  # own and (cut out) plotly's, three figures
    assert len(re.findall(r"</script>", own)) == 2 + 3
    assert "49" not in re.findall(r"alert\(1\).{0,40}", html.unescape(own))[0]  # a template in a host name is not run
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;").replace('"', "&#34;") in own
    hovers = [text for figure in figures(page).values() for trace in figure["data"] for text in trace.get("customdata", [])]
    assert any("rank 5" in text for text in hovers)
    assert not any("<script" in text or "<img" in text for text in hovers)


@pytest.mark.parametrize("with_events", [True, False])
def test_a_run_that_died_early_has_a_report(tmp_path: Path, with_events: bool) -> None:
    page = render_html(RunReader(synthetic.write_run(tmp_path / "run", with_verdict=False, with_events=with_events)))
    text = html.unescape(without_plotly(page))
    assert "No verdict" in text
    assert "still going, or died" in text
    assert ("gantt" in figures(page)) == with_events
    assert "Confirmed" in text


def test_a_run_without_an_iteration_has_a_report(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", synthetic.header()).close()
    text = html.unescape(without_plotly(render_html(RunReader(tmp_path / "run"))))
    assert "No iteration was recorded" in text
    assert "before its first iteration" in text


def test_a_healthy_run(tmp_path: Path) -> None:
    text = html.unescape(without_plotly(render_html(RunReader(synthetic.write_run(tmp_path / "run", healthy=True)))))
    assert "Neither: no lasting change was found." in text
    assert "What was changed</h2>" not in text


def test_write_report_replaces_the_file_whole(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", healthy=True)
    (run / "report.html").write_text("old")
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_text(encoding="utf-8").endswith("</html>")
    assert not list(run.glob(".*.tmp"))
    assert render_html(RunReader(run)) == render_html(RunReader(run))
