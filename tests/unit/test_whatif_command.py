"""`lurcher analyze` on operation traces: what is printed and written, and how bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
import synthetic_run

from lurcher.cli.app import main


@pytest.fixture
def slow(made: ModuleType, tmp_path: Path) -> Path:
    path = tmp_path / "trace-slow.parquet"
    made.write(path, made.made_trace(2, 3, 6, 4, slow={(1, 0): 1.6}))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in ("analyze", *arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_answer_its_numbers_and_its_reasons(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, slow, "--exit-code")
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[0].startswith("A real fault, not the workload: worker dp1/stage0 (rank 2), x1.6")
    assert lines[1].split()[0] == "fail_slow" and any(line.strip().startswith("by worker") and "dp1/stage0 x1." in line for line in lines)
    assert any(line.strip().startswith("plan") for line in lines) and any(line.strip().startswith("because") for line in lines)


def test_json_page_and_timeline(slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, timeline = tmp_path / "out.html", tmp_path / "step.json"
    code, out, err = run(capsys, slow, "--json", "--report", page, "--timeline", timeline)
    answer = json.loads(out)
    assert code == 0 and answer["schema"] == "lurcher/verdict/1" and answer["source"]["format"] == "op trace"
    assert str(page) in err and str(timeline) in err and page.stat().st_size > 1_000_000
    code, out, _ = run(capsys, timeline, slow, "--json")
    first, second = json.loads(out)["verdicts"]
    assert first["events"][0]["suspects"][0]["component"] == second["events"][0]["suspects"][0]["component"]
    code, _, err = run(capsys, slow, "--timeline", timeline)
    assert code == 2 and "exists already" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("{slow}", "{csv}"), "is an operation trace and"),
        (("{slow}", "--baseline", "{csv}"), "compared with each other; leave it out"),
        (("{slow}", "{slow}", "--report", "{new}"), "draw one trace, and 2 are given"),
        (("{csv}", "--timeline", "{new}"), "draws a step of an operation trace"),
    ],
)
def test_what_does_not_go_together_is_refused(
    slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("iteration,duration_s\n" + "".join(f"{i},1.0\n" for i in range(30)))
    names = {"slow": slow, "csv": csv, "new": tmp_path / "new.html"}
    code, out, err = run(capsys, *(option.format(**names) for option in options))
    assert code == 2 and out == "" and words in err and len(err.splitlines()) == 1


def test_a_broken_trace_is_one_line(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pq.read_table(slow).drop_columns(["duration"]), slow)
    code, out, err = run(capsys, slow)
    assert (code, out) == (2, "") and "lacks the column duration" in err and len(err.splitlines()) == 1


def test_a_run_folder_has_its_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, synthetic_run.write_run(tmp_path / "run"), "--json")
    answer = json.loads(out)
    assert code == 0
    assert max(answer["what_if"]["by_worker"], key=answer["what_if"]["by_worker"].get) == "dp1/stage0"
    assert "slow beside its like: dp1/stage0" in answer["events"][0]["evidence"][-1]
