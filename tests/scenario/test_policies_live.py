"""A policy on real processes: stragglers of two replicas are brought together.

What is changed is asserted; how much it wins, and the way back, are for bench/mitigation.py: a test may share its machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 300.0

pytestmark = [pytest.mark.timeout(360), pytest.mark.alone]

JOB = """
[job]
iterations = 48
[layout]
tp = 1
pp = 2
dp = 2
num_microbatches = 16
[pace]
token_us = 250.0
pair_ns = 5000.0
[plan]
policy = "greyhound"
cooldown_iterations = 4
[[fault]]
text = "slow rank 0 x2.5 from 22"
[[fault]]
text = "slow rank 3 x2.5 from 22"
"""


def test_stragglers_of_two_replicas_are_brought_together(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "lurcher", "train", "job.toml", "--json", "--quiet", "--run-dir", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "fail_slow", verdict["summary"]
    slow = [event for event in verdict["events"] if event["kind"] == "fail_slow"]
    assert {rank for event in slow for suspect in event["suspects"] for rank in suspect["component"]["ranks"]} == {0, 3}
    changes = verdict["reconfigurations"]
    together = next(change for change in changes if "consolidate" in {action["kind"] for action in change["plan"]["actions"]})
    homes = {rank: d for d, replica in enumerate(together["plan"]["layout"]["replicas"]) for stage in replica["stages"] for rank in stage["ranks"]}
    assert homes[0] == homes[3]
    assert together["plan"]["predicted_s"] < together["plan"]["present_s"]
    assert together["outcome"] == "applied"
