"""The page of a trace, its charts, and the timeline that Perfetto opens."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from lurcher.analyze.trace import explain_trace
from lurcher.errors import UserError
from lurcher.ingest.op_trace import TraceOp
from lurcher.ingest.op_trace_read import read_trace
from lurcher.localize.whatif import analyse
from lurcher.report.trace_chrome import write_timeline
from lurcher.report.trace_figures import shown_workers, step_figure, worker_map
from lurcher.report.trace_page import render_trace
from lurcher.report.trace_spans import ideal_spans, measured_spans, typical_step

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_the_page_answers_and_escapes(made: ModuleType) -> None:
    trace = replace(made.made_trace(2, 3, 4, 3, slow={(1, 0): 1.6}), path=f"/x/{HOSTILE}", notes=(HOSTILE,))
    verdict, analysis = explain_trace(trace)
    page = render_trace(analysis, msgspec.to_builtins(verdict), "1.2.3")
    assert HOSTILE not in page and page.count("&lt;/script&gt;") >= 2
    visible = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    assert "Fail-slow" in visible and "dp1/stage0" in visible and "What would help" in visible
    assert len(re.findall(r'data-figure="(map|step)"', page)) == 2
    for name in ("map", "step"):
        json.loads(re.search(rf'id="figure-{name}">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert not re.search(r"(?:src|href)=[\"']?http", visible)


def test_the_map_frames_the_slow_worker(made: ModuleType) -> None:
    analysis = analyse(made.made_trace(2, 3, 4, 3, slow={(1, 0): 1.6}))
    figure = worker_map(analysis, [(1, 0)])
    values = np.array(figure["data"][0]["z"])
    assert values.shape == (2, 3) and np.unravel_index(values.argmax(), values.shape) == (0, 1)
    (frame,) = figure["layout"]["shapes"]
    assert (frame["x0"], frame["y0"]) == (0.5, -0.5)


def test_timelines_share_one_scale_and_end_where_the_replay_does(made: ModuleType) -> None:
    analysis = analyse(made.made_trace(2, 3, 4, 5, slow={(1, 0): 1.6}))
    place = typical_step(analysis)
    assert np.sort(analysis.what_if.no_delay_s)[2] == analysis.what_if.no_delay_s[place]
    measured, ideal = measured_spans(analysis, place), ideal_spans(analysis, place)
    assert measured.length_s == pytest.approx(float(analysis.what_if.measured_s[place]), rel=1e-6)
    assert ideal.length_s == pytest.approx(analysis.what_if.ideal_s)
    workers = shown_workers(analysis, [(1, 0)])
    assert (1, 0) in workers and len(workers) == 6
    figure = step_figure(analysis, [measured, ideal], workers, [(1, 0)])
    assert figure["layout"]["xaxis"]["range"] == figure["layout"]["xaxis2"]["range"]
    for one, axis in ((measured, "x"), (ideal, "x2")):
        computed = [t for t in figure["data"] if t["xaxis"] == axis and t["legendgroup"] == "forward"]
        assert sum(map(sum, (t["x"] for t in computed))) == pytest.approx(
            float(one.own_s[analysis.graph.table.op == TraceOp.FORWARD].sum()), rel=1e-3
        )


def test_large_jobs_draw_a_few_workers(made: ModuleType) -> None:
    analysis = analyse(made.made_trace(4, 70, 4))
    assert len(shown_workers(analysis, [(69, 2)])) == 16 and (69, 2) in shown_workers(analysis, [(69, 2)])
    assert np.array(worker_map(analysis, [])["data"][0]["z"]).shape == (4, 64)


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_the_timeline_can_be_analysed_again(made: ModuleType, tmp_path: Path, name: str) -> None:
    analysis = analyse(made.made_trace(3, 2, 4, 3, slow={(1, 2): 1.5}))
    path = tmp_path / name
    write_timeline(analysis, path, 1)
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    processes = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert sorted(processes.values()) == ["ideal, all 2 replicas alike", "measured, DP rank [0]", "measured, DP rank [1]"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in document["traceEvents"] if e["ph"] == "X")
    again = analyse(read_trace(path))
    assert again.what_if.steps.tolist() == [1] and again.num_replicas == 2
    assert again.what_if.no_delay_s[0] == pytest.approx(float(analysis.what_if.no_delay_s[1]), rel=1e-5)
    assert again.ranks_of(1, 2) == analysis.ranks_of(1, 2)


def test_a_timeline_that_cannot_be_written_is_one_line(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a file in a folder that can be written"):
        write_timeline(analyse(made.made_trace(1, 1, 1)), tmp_path / "absent" / "x.json")
    assert list(tmp_path.iterdir()) == []
