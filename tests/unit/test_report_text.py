"""The report for a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic_run as synthetic

from lurcher.report import render_text
from lurcher.report.words import DASH, for_terminal, percent, rate, ratio, seconds, split_text
from lurcher.runlog import RunReader, RunWriter


def test_the_facts_of_a_fault_on_one_screen(tmp_path: Path) -> None:
    text = render_text(RunReader(synthetic.write_run(tmp_path / "run")))
    for words in (
        "FAIL-SLOW  [emulated devices]",
        "put in on purpose: rank 5 slow",
        "rank 5 (node-b, cuda:1)",
        "(16, 16) → (20, 12)",
        "% of healthy",
        "Reverted",
        "*5: 1.79×",
        "why: REBALANCE",
    ):
        assert words in text
    assert len(text.splitlines()) <= 45
    assert text.endswith("\n")


def test_runs_without_verdict_or_iterations(tmp_path: Path) -> None:
    assert "NO VERDICT" in render_text(RunReader(synthetic.write_run(tmp_path / "died", with_verdict=False)))
    RunWriter.create(tmp_path / "empty", synthetic.header()).close()
    assert "before its first iteration" in render_text(RunReader(tmp_path / "empty"))
    assert "HEALTHY" in render_text(RunReader(synthetic.write_run(tmp_path / "healthy", healthy=True)))


def test_a_host_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    head = synthetic.header(hosts=("a", "b\x1b[2J\r\u202e"))
    text = render_text(RunReader(synthetic.write_run(tmp_path / "run", head=head, reason_suffix="\x07")))
    assert "b?[2J??" in text
    assert for_terminal(text) == text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (seconds(0.00002), "20 µs"), (seconds(0.0123), "12.3 ms"), (seconds(0), "0.00 s"), (seconds(1.234), "1.23 s"), (seconds(83.2), "83 s"), (seconds(3600), "60.0 min"), (seconds(None), DASH),
        (rate(92.88), "92.9"), (rate(12345.6), "12,346"), (rate(float("nan")), DASH), (ratio(1.8), "1.80×"), (ratio(None), DASH), (percent(0.813), "81 %"), (percent(-0.1, signed=True), "-10 %"),
        (split_text((20, 12)), "(20, 12)"), (split_text(tuple(range(40))), "(0, 1, 2, 3, 4, … 40 replicas, 0 to 39 each)"),
    ],
)  # fmt: skip
def test_words(shown: str, expected: str) -> None:
    assert shown == expected
