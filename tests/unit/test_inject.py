"""Injectors slow a process down from outside, and leave it as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lurcher.clock import FakeClock
from lurcher.control import inject
from lurcher.errors import UserError


@pytest.fixture
def victim():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


class Watching(FakeClock):
    """Notes whether the victim is stopped while the injector waits."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self.waits: list[tuple[str, float]] = []

    def sleep_s(self, duration_s: float) -> None:
        if len(self.waits) % 2 == 0:
            os.waitid(os.P_PID, self._pid, os.WSTOPPED)
        else:
            assert runs_again(self._pid)
        self.waits.append((state_of(self._pid), duration_s))
        super().sleep_s(duration_s)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def runs_again(pid: int) -> bool:
    """Within seconds, for a signal takes a moment to act."""
    deadline_s = time.monotonic() + 10.0
    while state_of(pid) == "T" and time.monotonic() < deadline_s:
        os.sched_yield()
    return state_of(pid) != "T"


@pytest.mark.parametrize("factor", [1.25, 2.0, 10.0])
def test_a_process_runs_for_its_share_of_the_time(victim, factor):
    clock = Watching(victim)
    assert inject.stop_and_continue(victim, factor, 1.0, clock, lambda: False) == pytest.approx(1.0, abs=inject.PERIOD_S)
    stopped_s = sum(duration_s for state, duration_s in clock.waits if state == "T")
    running_s = sum(duration_s for state, duration_s in clock.waits if state != "T")
    assert (stopped_s + running_s) / running_s == pytest.approx(factor)
    assert runs_again(victim)


def test_whoever_breaks_it_off_leaves_the_process_running(victim):
    class Interrupted(FakeClock):
        def sleep_s(self, duration_s: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inject.stop_and_continue(victim, 2.0, 1.0, Interrupted(), lambda: False)
    assert runs_again(victim)


def test_it_ends_with_the_job(victim):
    assert inject.stop_and_continue(victim, 2.0, 60.0, FakeClock(), lambda: True) == 0.0
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)


def test_a_quota_holds_while_inside(victim):
    if not os.access(inject.CPU_GROUPS, os.W_OK):
        pytest.skip(f"{inject.CPU_GROUPS} is not writable here")
    before = Path(f"/proc/{victim}/cgroup").read_text()
    with inject.quota(victim, 0.5) as group:
        assert str(victim) in (group / "tasks").read_text().split()
        assert int((group / "cpu.cfs_quota_us").read_text()) == inject.QUOTA_PERIOD_US // 2
    assert Path(f"/proc/{victim}/cgroup").read_text() == before
    assert not group.exists()


def test_without_control_groups_it_says_what_else_there_is(victim, tmp_path):
    with pytest.raises(UserError, match="--by stop"), inject.quota(victim, 0.5, tmp_path / "none"):
        pass


def test_the_rank_is_found_or_the_reason_given(victim, tmp_path):
    with pytest.raises(UserError, match="job that is running"):
        inject.rank_pid(tmp_path, 0)
    (tmp_path / "state.json").write_text(f'{{"pid": 1, "generation": 0, "ranks": {{"0": {victim}}}}}')
    assert inject.rank_pid(tmp_path, 0) == victim
    with pytest.raises(UserError, match="rank 7"):
        inject.rank_pid(tmp_path, 7)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UserError, match="is over"):
        inject.rank_pid(tmp_path, 0)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(UserError, match="not the state of a job"):
        inject.rank_pid(tmp_path, 0)


@pytest.mark.parametrize("factor", [1.0, 0.0, -2.0, float("nan"), 1e9])
def test_a_factor_must_slow_down(factor):
    with pytest.raises(UserError, match="factor"):
        inject.check_factor(factor)
