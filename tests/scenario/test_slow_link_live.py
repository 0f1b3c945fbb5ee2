"""A slow link on real processes: named, proven by messages over it, and answered by a swap that makes activations cross it instead of gradients.

What is named and changed is asserted; how much it wins, and the way back, are for bench/mitigation.py: a test may share its machine.
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
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "lurcher", "train", "job.toml", "--json", "--quiet", "--run-dir", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "fail_slow", verdict["summary"]
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
