"""The report in a real browser: it opens offline, draws its charts, complains of nothing and asks nobody for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import synthetic_run as synthetic
from tests.browser.opened import CHROMIUM, HOSTILE, open_page

from lurcher.report import write_report

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"), pytest.mark.timeout(180)]


def test_opens_offline_without_a_complaint_or_a_request(tmp_path: Path) -> None:
    page = write_report(synthetic.write_run(tmp_path / "run"))
    document, console, asked = open_page(page, tmp_path / "scratch")
    assert console == ""
    assert asked == []  # files are not in that log; the last test here shows that a request would be
    for name in ("iterations", "gantt", "ranks"):
        drawn = re.search(rf'data-figure="{name}"[^>]*>(.*)', document, re.S)
        assert drawn
        assert 'class="main-svg"' in drawn[1][:3000]
    assert document.count('class="point"') > 500
    assert "--c-" not in "".join(re.findall(r"<svg.*?</svg>", document, re.S))  # every colour name was resolved


def test_hostile_text_does_nothing(tmp_path: Path) -> None:
    head = synthetic.header(hosts=("a", HOSTILE), command=HOSTILE, injected=(HOSTILE,))
    page = write_report(synthetic.write_run(tmp_path / "run", head=head, reason_suffix=HOSTILE))
    document, console, _ = open_page(page, tmp_path / "scratch")
    assert console == ""
    assert re.search(r"<title>(.*?)</title>", document)[1].startswith("Fail-slow")  # type: ignore[index]


def test_the_policy_stops_a_script_that_got_in(tmp_path: Path) -> None:
    page = write_report(synthetic.write_run(tmp_path / "run", healthy=True))
    page.write_text(page.read_text(encoding="utf-8").replace("</main>", "</main><script>document.title='owned'</script>"), encoding="utf-8")
    document, console, _ = open_page(page, tmp_path / "scratch")
    assert "<title>Healthy" in document
    assert "Content Security Policy" in console


def test_decisions_are_filtered(tmp_path: Path) -> None:
    page = write_report(synthetic.write_run(tmp_path / "run"))
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    act = "const k=document.getElementById('decision-kind');k.value='state';k.dispatchEvent(new Event('input'));const s=document.getElementById('decision-search');s.value='RANK 5';s.dispatchEvent(new Event('input'));"
    page.write_text(text.replace("</body>", f"<script>{act}</script></body>"), encoding="utf-8")
    document, _, _ = open_page(page, tmp_path / "scratch")
    assert '<span id="decision-count">2</span>' in document
    shown = re.findall(r'<tr data-kind="(\w+)">', document)
    assert shown == ["state", "state"]


def test_a_request_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<title>x</title><img src='http://127.0.0.1:9/pixel.png'>")
    _, _, asked = open_page(page, tmp_path / "scratch")
    assert "http://127.0.0.1:9/pixel.png" in asked
