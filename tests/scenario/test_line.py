"""Whole jobs as a user runs them: the examples with their expected verdicts, the demo, and a fault that lurcher was not told of.

Names, proofs and changes are asserted; speed is measured in bench/line.py, for a test may share its machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]
EXAMPLES = [p for p in sorted((REPO / "examples").glob("*.toml")) if not p.name.endswith(".expected.toml")]
DEADLINE_S = 300.0

pytestmark = [pytest.mark.timeout(360), pytest.mark.alone]


def lurcher(*words: str, cwd: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = subprocess.run([sys.executable, "-m", "lurcher", *words], capture_output=True, text=True, timeout=DEADLINE_S, cwd=cwd, check=False)
    return done.returncode, done.stdout, done.stderr


def suspects(verdict: dict[str, Any]) -> list[int]:
    return [rank for event in verdict["events"] for suspect in event["suspects"][:1] for rank in suspect["component"]["ranks"]]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_come_out_as_expected(example: Path, tmp_path: Path) -> None:
    """With half of the micro-batches where there are as many as in the demo, which takes half as long."""
    expected = tomllib.loads(example.with_suffix(".expected.toml").read_text())
    (tmp_path / "job.toml").write_text(example.read_text().replace("num_microbatches = 32", "num_microbatches = 16"))
    code, out, err = lurcher("train", "job.toml", "--json", "--run-dir", "run", cwd=tmp_path)
    assert code == 0, err
    verdict = json.loads(out)
    assert suspects(verdict) == expected["ranks"]
    # A busy machine may slow all ranks alike for a while; that is then reported, truly, as a shift that no part explains.
    others = [event for event in verdict["events"] if event["kind"] not in ("fail_slow", "fail_stop", "hang")]
    assert verdict["verdict"] == expected["verdict"] or (expected["verdict"] == "healthy" and others == verdict["events"]), verdict["summary"]
    assert [r["outcome"] for r in verdict["reconfigurations"]] == expected["reconfigurations"]
    for event in verdict["events"]:
        assert event in others or (event["kind"], event["cause"], event["validated"]) == ("fail_slow", "compute", True)
    assert json.loads((tmp_path / "run" / "verdict.json").read_text()) == verdict
    assert not (tmp_path / "run" / "state.json").exists()


def test_a_run_can_be_reported_again_from_its_folder(tmp_path: Path) -> None:
    """The README's two ways to a first result, on a job small enough to be quick."""
    words = ("demo", "--tp", "1", "--num-microbatches", "4", "--iterations", "40", "--slow-rank", "2", "--run-dir", "run", "--exit-code")
    code, out, err = lurcher(*words, cwd=tmp_path)
    assert code == 3, err
    assert "rank 2" in out and "run/report.html" in out and "real CPU of a chunk" in out
    moved = tmp_path / "elsewhere"
    (tmp_path / "run").rename(moved)
    (moved / "report.html").unlink()
    code, out, _ = lurcher("report", str(moved), "--text", cwd=tmp_path)
    assert code == 0 and "rank 2" in out
    assert lurcher("report", str(moved), cwd=tmp_path)[0] == 0
    assert (moved / "report.html").stat().st_size > 1_000_000


JOB = """
[job]
iterations = 64
[layout]
tp = 1
pp = 2
dp = 2
num_microbatches = 16
[pace]
token_us = 300.0
pair_ns = 6000.0
"""


def test_a_fault_from_outside_is_found_proven_mitigated_and_taken_back(tmp_path: Path) -> None:
    """One rank's process is stopped and continued from here for a while; nothing in the job knows of it."""
    (tmp_path / "job.toml").write_text(JOB)
    victim = 1
    command = [sys.executable, "-m", "lurcher", "train", "job.toml", "--json", "--run-dir", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True) as process:
        try:
            _disturb(process, tmp_path / "run", victim)
            out, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    verdict = json.loads(out)
    assert verdict["verdict"] == "fail_slow", verdict["summary"]
    assert suspects(verdict)[0] == victim
    assert verdict["events"][0]["validated"] and verdict["events"][0]["cause"] == "compute"
    outcomes = [r["outcome"] for r in verdict["reconfigurations"]]
    assert outcomes[0] == "applied" and outcomes[-1] == "reverted"


def _disturb(process: subprocess.Popen[str], run_dir: Path, victim: int) -> None:
    """10 ms stopped, 10 ms running, from the 21st iteration to the 41st, as the job's own lines tell."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("iteration 21/"):
            break
    pid = json.loads((run_dir / "state.json").read_text())["ranks"][str(victim)]
    os.set_blocking(process.stderr.fileno(), False)
    said, deadline = "", time.monotonic() + DEADLINE_S / 2
    try:
        while "iteration 41/" not in said and process.poll() is None and time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            said += os.read(process.stderr.fileno(), 65536).decode() if _readable(process) else ""
    finally:
        os.kill(pid, signal.SIGCONT)
        os.set_blocking(process.stderr.fileno(), True)


def _readable(process: subprocess.Popen[str]) -> bool:
    import select

    assert process.stderr is not None
    return bool(select.select([process.stderr], [], [], 0)[0])
