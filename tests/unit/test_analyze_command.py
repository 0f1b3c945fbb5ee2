"""`lurcher analyze` from the command line: what goes where, and how bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lurcher.cli.app import main


def table(path: Path, durations: np.ndarray, first: int = 0) -> Path:
    lines = [f"{first + i},{seconds:.6f}" for i, seconds in enumerate(durations)]
    path.write_text("iteration,duration_s\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def durations(slow: float = 1.0, seed: int = 1) -> np.ndarray:
    values = 1.0 + np.random.default_rng(seed).normal(0.0, 0.01, 500)
    values[200:350] *= slow
    return values


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in ("analyze", *arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_sentence_and_a_line_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, table(tmp_path / "a.csv", durations(1.3)))
    assert (code, err) == (0, "")
    sentence, event = out.splitlines()[:2]
    assert sentence.startswith("A real slowdown") and "no part can be named" in sentence
    assert event.split()[:4] == ["fail_slow", "200", "to", "349,"]


def test_json_is_alone_on_stdout_and_the_exit_code_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fine = table(tmp_path / "a.csv", durations(1.3)), table(tmp_path / "b.csv", durations())
    code, out, _ = run(capsys, slow, "--json", "--exit-code")
    answer = json.loads(out)
    assert code == 3
    assert list(answer) == [
        "schema",
        "source",
        "verdict",
        "summary",
        "events",
        "what_if",
        "plan",
        "reconfigurations",
        "throughput",
        "copies",
        "verification",
        "wall_s",
    ]
    assert (answer["schema"], answer["verdict"]) == ("lurcher/verdict/1", "fail_slow")
    assert answer["source"] == {"path": str(slow), "format": "csv", "num_iterations": 500, "num_ranks": 1}
    assert run(capsys, fine, "--json", "--exit-code")[0] == 0
    code, out, _ = run(capsys, slow, fine, "--json")
    both = json.loads(out)
    assert (code, both["schema"]) == (0, "lurcher/verdicts/1")
    assert [v["verdict"] for v in both["verdicts"]] == ["fail_slow", "healthy"]


def test_a_folder_is_a_table_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "a.csv", durations(1.3))
    table(tmp_path / "b.csv", durations())
    code, out, _ = run(capsys, tmp_path)
    assert code == 0 and len([line for line in out.splitlines() if " it  " in line]) == 2
    assert "2 runs, 50% hit by fail-slow" in out


def test_a_page_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fine = table(tmp_path / "a.csv", durations(1.3)), table(tmp_path / "b.csv", durations())
    code, out, _ = run(capsys, slow, fine, "--report", tmp_path / "out.html")
    assert code == 0 and "out.html" in out
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "2 runs" in text and text.index("a.csv") < text.index("b.csv") and "50 %" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", "out.html"]


def test_a_restart_is_said_at_its_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{i},1.{i % 7}" for i in (*range(100), *range(60, 200))]
    path = tmp_path / "a.csv"
    path.write_text("iteration,duration_s\n" + "\n".join(lines) + "\n")
    sentence = run(capsys, path)[1].splitlines()[0]
    assert sentence.endswith("; restarted at 60.") and "60 to 60" not in sentence
    path.write_text("iteration,duration_s\n" + "\n".join([*lines, *lines[170:]]) + "\n")
    assert run(capsys, path)[1].splitlines()[0].endswith("; restarted 2 times, first at 60.")


def test_a_bar_on_a_terminal_and_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.csv", durations(1.3))
    monkeypatch.setattr("lurcher.cli.logs.BAR_FROM_BYTES", 0)
    assert run(capsys, path)[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, out, err = run(capsys, path, "--json")
    assert code == 0 and json.loads(out)["verdict"] == "fail_slow"
    assert "reading" in err or "looking" in err


def test_against_siblings_a_schedule_is_no_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = np.where(np.arange(500) < 250, 1.0, 1.7)
    files = [table(tmp_path / f"{name}.csv", durations(seed=seed) * schedule) for seed, name in enumerate("abc")]
    assert json.loads(run(capsys, files[0], "--json")[1])["verdict"] == "inconclusive"
    code, out, _ = run(capsys, files[0], "--baseline", files[1], "--baseline", files[2], "--json")
    assert code == 0 and json.loads(out)["events"] == []


def test_a_fault_against_siblings_is_a_fail_slow_although_it_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hit = durations()
    hit[300:] *= 1.1
    files = table(tmp_path / "a.csv", hit), table(tmp_path / "b.csv", durations(seed=2))
    (event,) = json.loads(run(capsys, files[0], "--baseline", files[1], "--json")[1])["events"]
    assert (event["kind"], event["end_iteration"]) == ("fail_slow", None)
    assert abs(event["onset_iteration"] - 300) <= 1


def test_a_page_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = table(tmp_path / "a.csv", durations(1.3)), tmp_path / "out.html"
    code, out, _ = run(capsys, source, "--report", page)
    assert code == 0 and str(page) in out
    text = page.read_text(encoding="utf-8")
    assert "<html" in text and "A real slowdown" in text
    code, _, err = run(capsys, source, "--report", page)
    assert code == 2 and "exists already" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "out.html"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02\x03" * 100, "binary"),
        (b"iteration,duration_s\n1,0.5\n2,fast\n", "line 3"),
        (b"iteration,duration_s\n1,0\n2,-1\n", "none of 2 iterations"),
        (b"dear diary\nnothing happened\n", "diary"),
    ],
    ids=["empty", "binary", "a word for a number", "no time above zero", "prose"],
)
def test_bad_input_is_one_line(content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "diary.log"
    path.write_bytes(content)
    code, out, err = run(capsys, path)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1 and str(path) in err and said in err


def test_options_that_cannot_be_met_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = table(tmp_path / "a.csv", durations()), table(tmp_path / "b.csv", durations(), first=10_000)
    for arguments, said in [
        ((tmp_path / "none.csv",), "does not exist"),
        ((a, "--format", "excel"), "allowed are"),
        ((a, "--baseline", tmp_path / "none.csv"), "does not exist"),
        ((a, "--baseline", b), "covers iterations 10000 to 10499"),
        ((a, "--report", tmp_path / "no" / "x.html"), "there is no folder"),
    ]:
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "") and len(err.strip().splitlines()) == 1 and said in err, arguments
