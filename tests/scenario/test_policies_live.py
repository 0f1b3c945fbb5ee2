"""Policies on real processes: stragglers of two replicas are brought together; a slow link between nodes is given less to carry.

What is named and changed is asserted; how much it wins, and the way back, are for bench/mitigation.py: a test may share its machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 300.0

pytestmark = [pytest.mark.timeout(360), pytest.mark.alone]


def verdict_of(job: str, folder: Path) -> dict[str, Any]:
    """Train the job as a user would; something in it is slow."""
    (folder / "job.toml").write_text(job)
    command = [sys.executable, "-m", "lurcher", "train", "job.toml", "--json", "--quiet", "--run-dir", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    assert verdict["verdict"] == "fail_slow", verdict["summary"]
    return verdict


TWO_STRAGGLERS = """
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
    verdict = verdict_of(TWO_STRAGGLERS, tmp_path)
    slow = [event for event in verdict["events"] if event["kind"] == "fail_slow"]
    assert {rank for event in slow for suspect in event["suspects"] for rank in suspect["component"]["ranks"]} == {0, 3}
    changes = verdict["reconfigurations"]
    together = next(change for change in changes if "consolidate" in {action["kind"] for action in change["plan"]["actions"]})
    homes = {rank: d for d, replica in enumerate(together["plan"]["layout"]["replicas"]) for stage in replica["stages"] for rank in stage["ranks"]}
    assert homes[0] == homes[3]
    assert together["plan"]["predicted_s"] < together["plan"]["present_s"]
    assert together["outcome"] == "applied"


SLOW_LINK = """
[job]
iterations = 52
[layout]
tp = 1
pp = 2
dp = 2
num_microbatches = 8
ranks_per_node = 2
[model]
num_layers = 4
[pace]
token_us = 200.0
pair_ns = 4000.0
link_us = 200.0
link_mb_per_s = 5.0
[plan]
policy = "greyhound"
cooldown_iterations = 4
[[fault]]
text = "slow link 0-2 x6 from 22"
"""


def test_a_slow_link_between_nodes_carries_activations_instead_of_gradients(tmp_path: Path) -> None:
    verdict = verdict_of(SLOW_LINK, tmp_path)
    (event,) = [event for event in verdict["events"] if event["kind"] == "fail_slow"]
    (suspect,) = event["suspects"]
    assert (suspect["component"]["kind"], suspect["component"]["id"], suspect["cause"]) == ("link", "node0-node1", "communication")
    assert event["validated"] and suspect["slowdown"] == pytest.approx(6.0, rel=0.25)
    assert [place["host"].rsplit("-", 1)[1] for place in suspect["component"]["places"]] == ["node0", "node1"]
    change = verdict["reconfigurations"][0]
    assert change["outcome"] == "applied" and change["plan"]["predicted_s"] < change["plan"]["present_s"]
    replicas = [[rank for stage in replica["stages"] for rank in stage["ranks"]] for replica in change["plan"]["layout"]["replicas"]]
    assert all({rank // 2 for rank in ranks} == {0, 1} for ranks in replicas), "each replica is on both nodes"
    assert all(len({ranks[s] // 2 for ranks in replicas}) == 1 for s in range(2)), "and each stage, whose gradients are summed, on one"
