"""`lurcher plan`: the papers' worked examples with their output, JSON, the page, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic_run import write_run

from lurcher.analyze.values import PlanSet
from lurcher.cli.app import main
from lurcher.model.price import price
from lurcher.plan.joint import plan_all
from lurcher.plan.problem import load_problem
from lurcher.report.plan_page import MOST_CELLS, render_plan_page

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_print_what_stands_beside_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If a change of the planner is meant to change them: `lurcher plan FILE --top 4 > FILE.out` again, and look."""
    code, out, err = run(capsys, str(path), "--top", "4")
    assert (code, err) == (0, "")
    assert out == path.with_suffix(".out").read_text(encoding="utf-8")
    assert f"({path.relative_to(EXAMPLES.parent)})" in (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")


def by_kind(name: str, *kinds: str) -> tuple[Any, Any]:
    """The problem, and its best plan made of these kinds of actions."""
    problem = load_problem(EXAMPLES / name)
    plans = [plan for plan in plan_all(problem) if {action.kind for action in plan.actions} == set(kinds)]
    return problem, min(plans, key=lambda plan: plan.predicted_s)


def test_greyhound_figure_12() -> None:
    _, plan = by_kind("01_consolidate.toml", "consolidate")
    assert plan.present_s == pytest.approx(8.5, abs=0.005)
    assert plan.predicted_s == pytest.approx(8.0, abs=0.005)


def test_greyhound_slow_link_from_1_7_to_1_3() -> None:
    problem, plan = by_kind("02_role_swap.toml", "swap")
    healthy_s = price(problem.layout, msgspec.structs.replace(problem.rates, links=())).iteration_s
    assert plan.present_s / healthy_s == pytest.approx(1.7, abs=0.05)
    assert plan.predicted_s / healthy_s == pytest.approx(1.3, abs=0.05)


def test_resihp_layers() -> None:
    _, plan = by_kind("03_relayer.toml", "relayer")
    assert [stage.num_layers for stage in plan.layout.replicas[0].stages] == [5, 2, 5]


def test_resihp_dead_rank() -> None:
    problem = load_problem(EXAMPLES / "04_dead_rank.toml")
    plans = plan_all(problem)
    degrees = {tuple(sorted(stage.tp_size for _, _, stage in plan.layout.stages())): plan.predicted_s for plan in reversed(plans)}
    assert degrees[2, 4, 4, 4] > degrees[3, 4, 4, 4]
    assert math.isinf(plans[-1].predicted_s)
    assert 6 in plans[0].layout.standby


def test_json_is_a_plan_set(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(EXAMPLES / "03_relayer.toml"), "--json", "--top", "2")
    assert (code, err) == (0, "")
    found = msgspec.json.decode(out, type=PlanSet)
    assert found.schema == "lurcher/plan/1" and found.present is not None and len(found.plans) == 2
    assert found.plans[0].predicted_s < found.present.predicted_s
    assert found.plans[0].gap == pytest.approx(found.plans[0].predicted_s / found.plans[0].bound_s - 1)


def test_json_where_the_present_layout_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, str(EXAMPLES / "04_dead_rank.toml"), "--json", "--top", "9")
    found = msgspec.json.decode(out)
    assert found["present"]["predicted_s"] is None
    assert all(entry["predicted_s"] is not None for entry in found["plans"])


def test_page_draws_both_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    code, out, _ = run(capsys, str(EXAMPLES / "04_dead_rank.toml"), "--report", str(page))
    text = page.read_text(encoding="utf-8")
    assert code == 0 and out.endswith(f"report  {page}\n")
    assert "Present layout" in text and "Best plan" in text
    assert text.count('title="rank 6, 25 %, dead"') == 1
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert not re.search(r"<script|https?://", text)
    code, _, err = run(capsys, str(EXAMPLES / "04_dead_rank.toml"), "--report", str(page))
    assert code == 2 and "exists already" in err


def test_page_escapes_and_holds_large_jobs(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        "[layout]\nnum_layers = 8\nnum_microbatches = 5120\ntp = 8\npp = 4\ndp = 80\n[rates]\nforward_s = 1\nbackward_s = 2\n[[fault]]\nranks = [77]\nslowdown = 3\n"
    )
    problem = load_problem(path)
    text = render_plan_page(plan_all(problem), problem, "<b>x</b>")
    assert "<b>x</b>" not in text and "&lt;b&gt;x" in text
    assert text.count('class="cell') <= 2 * MOST_CELLS and "are not shown" in text and "rank 77" in text


def test_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(write_run(tmp_path / "run")))
    assert code == 0
    assert out.startswith("Rank 5 is slow (1.80×).")
    assert "1. " in out


@pytest.mark.parametrize(("words", "line"), [(["none.toml"], "none.toml does not exist"), (["--top", "0", "x"], "Invalid value for '--top'")])
def test_bad_words_are_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert line in err and err.count("\n") == 1
