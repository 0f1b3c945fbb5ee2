"""Deaths, hangs and Ctrl-C of a real job: one clear line, the right exit code, nothing left running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.dist.job_process import JobProcess, alive, children_of_session, eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]


def test_kill_of_a_rank_ends_the_job_with_one_line(tmp_path: Path) -> None:
    with JobProcess(tmp_path) as job:
        job.wait_for_iteration(0)
        sid = job.process.pid
        os.kill(job.pids[2], signal.SIGKILL)
        begin = time.monotonic()
        code, verdict, err = job.finish(30.0)
        assert time.monotonic() - begin < 10.0
        said = [line for line in err.splitlines() if line.startswith("lurcher: ")]
        assert code == 4
        assert len(said) == 1 and "rank 2 (host " in said[0] and "SIGKILL" in said[0] and str(job.run_dir) in said[0]
        assert verdict["verdict"] == "fail_stop"
        assert "Traceback" not in err
        assert eventually(lambda: not children_of_session(sid))
        assert not (job.run_dir / "state.json").exists()


def test_with_recovery_the_job_goes_on_without_a_killed_rank_and_says_so(tmp_path: Path) -> None:
    with JobProcess(tmp_path, "--verify", iterations=28, on_death="recover") as job:
        job.wait_for_iteration(12)
        sid = job.process.pid
        os.kill(job.pids[2], signal.SIGKILL)
        code, verdict, err = job.finish(90.0)
        assert code == 0
        assert verdict["verdict"] == "fail_stop" and verdict["source"]["num_iterations"] == 28
        (event,) = (e for e in verdict["events"] if e["kind"] == "fail_stop")
        assert event["suspects"][0]["component"]["ranks"] == [2] and event["end_iteration"] == event["onset_iteration"]
        assert "was killed by SIGKILL" in event["evidence"][0]
        assert "rank 2" in verdict["summary"] and "went on without it" in verdict["summary"]
        (change,) = verdict["reconfigurations"]
        assert change["generation"] == 1 and change["outcome"] == "applied"
        same, copies = verdict["verification"], verdict["copies"]
        assert same["same"] and same["num_iterations"] == 28, same["reason"]
        assert set(same["state_errors"]) == {"param", "exp_avg", "exp_avg_sq"} and same["loss_error"] < 1e-3
        assert copies["num"] >= 2 and copies["most_bytes"] > 0 and 0 < copies["share"] < 1
        assert "Traceback" not in err
        assert eventually(lambda: not children_of_session(sid))


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    with JobProcess(tmp_path) as job:
        job.wait_for_iteration(0)
        sid = job.process.pid
        for pid in children_of_session(sid):  # a terminal sends it to everyone
            os.kill(pid, signal.SIGINT)
        code, verdict, err = job.finish(20.0)
        assert code == 130
        assert verdict["verdict"] == "healthy" and verdict["source"]["num_iterations"] > 0
        assert "Traceback" not in err
        assert eventually(lambda: not children_of_session(sid))


def test_a_killed_supervisor_takes_its_ranks_along(tmp_path: Path) -> None:
    with JobProcess(tmp_path) as job:
        job.wait_for_iteration(0)
        sid = job.process.pid
        job.process.kill()
        job.process.wait(10)
        assert eventually(lambda: not any(alive(pid) for pid in job.pids.values()))
        assert eventually(lambda: not children_of_session(sid))


def test_a_hanging_rank_is_named_not_its_waiters(tmp_path: Path) -> None:
    with JobProcess(tmp_path, "--fault", "hang rank 1 from 3", step_deadline_s=4.0) as job:
        code, verdict, err = job.finish(90.0)
        said = [line for line in err.splitlines() if line.startswith("lurcher: ")]
        assert code == 4
        assert len(said) == 1 and "rank 1 (host " in said[0] and "no progress" in said[0]
        assert verdict["verdict"] == "fail_stop"


def test_a_used_run_directory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old.txt").write_text("kept")
    with JobProcess(tmp_path) as job:
        code, _, err = job.finish(30.0)
        assert code == 2
        assert "already used" in err and len(err.strip().splitlines()) == 1
        assert (tmp_path / "run" / "old.txt").read_text() == "kept"
