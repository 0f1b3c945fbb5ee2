"""The layouts of a run, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import synthetic_run as synthetic

from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.records import Action, Decision, Plan, Reconfiguration
from lurcher.report import render_text
from lurcher.report.generations import generations
from lurcher.report.html import render_html
from lurcher.report.load import load
from lurcher.runlog import RunReader, RunWriter


def run_with(path: Path, *layouts: tuple[int, Layout, str]) -> RunReader:
    """A run whose layout changed at these iterations."""
    writer = RunWriter.create(path, synthetic.header())
    for number, (iteration, layout, outcome) in enumerate(layouts, 1):
        plan = Plan(msgspec.structs.replace(layout, generation=number), (Action("relayer", "layers move"),), 1.0, 0.8, 0.7, 0.1, 0, "it is faster")
        done = Reconfiguration(plan, number, iteration, 0.25, 3_400_000, outcome, f"done: <layers> move, generation {number}")
        writer.decide(Decision(iteration, 1.0, "reconfiguration", done.reason, done))
    writer.close()
    return RunReader(path)


def changed(layout: Layout) -> Layout:
    """Other layers and shares in replica 0, one micro-batch of it routed to replica 1, rank 7 aside."""
    first, second = layout.replicas
    stages = (Stage(first.stages[0].ranks, (3, 1), (LayerRange(0, 1),)), Stage(first.stages[1].ranks, (1, 1), (LayerRange(1, layout.num_layers),)))
    last = Stage((6,), (1,), second.stages[1].chunks)
    route = Route(0, second.stages[0].chunks[0], 1, 0)
    return Layout(
        layout.num_layers,
        layout.num_microbatches,
        (Replica(stages, first.microbatches), Replica((second.stages[0], last), second.microbatches)),
        (7,),
        (route,),
    )


def test_each_layout_is_told_with_what_changed(tmp_path):
    home = synthetic.header().layout
    facts = load(run_with(tmp_path / "run", (30, changed(home), "applied"), (35, changed(home), "failed"), (50, home, "reverted")))
    first, second, third = generations(facts)
    assert (first.iteration, first.outcome, first.pause_s) == (0, "start", None)
    assert not any(box.changed for row in first.replicas for box in row.stages)
    assert (second.number, second.iteration, second.pause_s, second.bytes_moved, second.standby) == (1, 30, 0.25, 3_400_000, (7,))
    assert [row.routed for row in second.replicas] == [1, 0]
    assert [[box.changed for box in row.stages] for row in second.replicas] == [[True, True], [False, True]]
    assert second.replicas[0].stages[0].ranks == "0 (3/4), 1 (1/4)" and second.replicas[1].stages[1].ranks == "6"
    assert (third.number, third.outcome) == (3, "reverted") and third.replicas[0].stages[0].changed


def test_both_reports_show_them(tmp_path):
    home = synthetic.header().layout
    run = run_with(tmp_path / "run", (30, changed(home), "applied"), (50, home, "reverted"), (60, changed(home), "applied"))
    text = render_text(run)
    assert "Layouts (generation" in text and "pause 0.25 s, 3.4 MB moved" in text
    page = render_html(run)
    assert page.count('class="generation"') == 4
    assert "1 in part elsewhere" in page and "Standing by: ranks 7." in page
    assert "done: &lt;layers&gt; move" in page and "<layers>" not in page


def test_a_job_that_never_changed_has_no_such_part(tmp_path):
    run = RunReader(synthetic.write_run(tmp_path / "run", healthy=True))
    assert generations(load(run)) == []
    assert 'class="generation"' not in render_html(run)


def test_both_reports_say_what_became_of_the_state(tmp_path):
    path = synthetic.write_run(tmp_path / "run")
    told = json.loads((path / "verdict.json").read_text())
    told["copies"] = {"num": 7, "pause_s": 0.012, "share": 0.0031, "most_bytes": 2_400_000, "total_bytes": 19_000_000}
    told["verification"] = {"same": False, "reason": "loss off by <much>"}
    (path / "verdict.json").write_text(json.dumps(told))
    text, page = render_text(RunReader(path)), render_html(RunReader(path))
    for words in ("Copied 7 times, with a pause of 12.0 ms each, 0.3% of the time; the copies take 2.4 MB on the rank with most, 19.0 MB in all.",):
        assert words in text and words in page
    assert "NOT the same training as without faults: loss off by <much>." in text and "loss off by &lt;much&gt;" in page
    told["verification"]["same"], told["copies"] = True, None
    (path / "verdict.json").write_text(json.dumps(told))
    text = render_text(RunReader(path))
    assert "The same training as without faults" in text and "Copied" not in text
