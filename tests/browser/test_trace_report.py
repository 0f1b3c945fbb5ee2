"""The page of an operation trace in a real browser: it opens offline, draws its charts, and hostile names do nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.browser.opened import CHROMIUM, HOSTILE, open_page

from lurcher.analyze.trace import explain_trace
from lurcher.report.trace_page import render_trace

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"), pytest.mark.timeout(180)]


def test_opens_offline_without_a_complaint_or_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import whatif_made

    trace = replace(whatif_made.made_trace(4, 4, 8, 3, slow={(1, 2): 1.5}), path=HOSTILE, notes=(HOSTILE,))
    verdict, analysis = explain_trace(trace)
    page = tmp_path / "page.html"
    page.write_text(render_trace(analysis, msgspec.to_builtins(verdict), "0"), encoding="utf-8")
    document, console, asked = open_page(page, tmp_path / "scratch")
    assert console == ""
    assert asked == []
    assert re.search(r"<title>(.*?)</title>", document)[1].startswith("Fail-slow")  # type: ignore[index]
    for name in ("map", "step"):
        drawn = re.search(rf'data-figure="{name}"[^>]*>(.*)', document, re.S)
        assert drawn
        assert 'class="main-svg"' in drawn[1][:3000]
    assert "--c-" not in "".join(re.findall(r"<svg.*?</svg>", document, re.S))  # every colour name was resolved
