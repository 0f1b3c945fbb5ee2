"""Slow a rank of a running job down from outside: nothing in the job knows of it. For trying out what is found, and how fast.

Two ways: stop and continue the process many times a second, or give it less of a core by a control group. Both undo what they
did when they end, however they end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lurcher.clock import Clock
from lurcher.errors import UserError

PERIOD_S = 0.02
"""Of one stop and one run. A device's chunk lasts some 15 ms or more; what is much longer than a chunk would look like single pauses."""
LONGEST_FACTOR = 50.0
QUOTA_PERIOD_US = 10_000
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")


class _State(msgspec.Struct):
    """What state.json of a run directory says."""

    pid: int
    ranks: dict[str, int]


def rank_pid(run_dir: Path, rank: int) -> int:
    """Process of a rank of the job that runs in `run_dir`; UserError if there is none."""
    path = run_dir / "state.json"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except OSError:
        raise UserError(f"{path} cannot be read; give the run directory of a job that is running") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not the state of a job ({error}); give the run directory of a job that is running") from None
    if str(rank) not in state.ranks:
        raise UserError(f"rank {rank} does not run in {run_dir}; its ranks are {', '.join(state.ranks)}")
    pid = state.ranks[str(rank)]
    if _parent(pid) is None:
        raise UserError(f"the job in {run_dir} is over: rank {rank}, process {pid}, has ended; start it again or give another run directory")
    return pid


def stop_and_continue(pid: int, factor: float, duration_s: float, clock: Clock, ended: Callable[[], bool]) -> float:
    """Let the process run for 1/`factor` of the time, in turns of 20 ms, until `duration_s` is over, it is gone or `ended()`.

    Returns how long it was done, in seconds. The process runs when this returns or raises.
    """
    stop_s = PERIOD_S * (1.0 - 1.0 / factor)
    begin_ns = clock.now_ns()
    try:
        while (clock.now_ns() - begin_ns) * 1e-9 < duration_s and not ended():
            os.kill(pid, signal.SIGSTOP)
            try:
                clock.sleep_s(stop_s)
            finally:
                os.kill(pid, signal.SIGCONT)
            clock.sleep_s(PERIOD_S - stop_s)
    except ProcessLookupError:
        pass  # the job has ended
    return (clock.now_ns() - begin_ns) * 1e-9


@contextmanager
def quota(pid: int, share: float, groups: Path = CPU_GROUPS) -> Iterator[Path]:
    """While inside, the process gets at most `share` of one core (control groups, version 1). UserError where they are not writable."""
    home = groups / _group_of(pid).lstrip("/")
    own = groups / f"lurcher-{os.getpid()}-{pid}"
    try:
        own.mkdir()
    except OSError as error:
        raise UserError(f"{groups} cannot be written ({error.strerror}); a quota needs root and control groups of version 1: use --by stop") from None
    try:
        _write(own / "cpu.cfs_period_us", str(QUOTA_PERIOD_US))
        _write(own / "cpu.cfs_quota_us", str(max(1_000, round(QUOTA_PERIOD_US * share))))
        for thread in _threads(pid):
            _write(own / "tasks", str(thread))
        yield own
    finally:
        for thread in _threads(pid):
            _write(home / "tasks", str(thread))
        _remove(own)


def hold_quota(pid: int, factor: float, duration_s: float, clock: Clock, ended: Callable[[], bool]) -> float:
    """Give the process 1/`factor` of a core for `duration_s`; returns how long, in seconds. Emulated devices sleep, and feel it only where
    their real work needs more."""
    begin_ns = clock.now_ns()
    with quota(pid, 1.0 / factor):
        while (clock.now_ns() - begin_ns) * 1e-9 < duration_s and not ended() and _parent(pid) is not None:
            clock.sleep_s(PERIOD_S)
    return (clock.now_ns() - begin_ns) * 1e-9


def check_factor(factor: float) -> None:
    """UserError unless a process can be slowed down so."""
    if not 1.0 < factor <= LONGEST_FACTOR:
        raise UserError(f"the factor is {factor:g}; 2 takes twice as long: give more than 1, at most {LONGEST_FACTOR:g}")


def _threads(pid: int) -> Sequence[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []


def _parent(pid: int) -> int | None:
    """Parent of a process; None if it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[1])


def _group_of(pid: int) -> str:
    """Path of the process's group below the hierarchy that holds `cpu`."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path
    return "/"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except ProcessLookupError:
        pass  # a thread that has ended meanwhile


def _remove(group: Path) -> None:
    """A group can be removed once its last thread has left, which takes the kernel a moment where one is just ending."""
    deadline_s = time.monotonic() + 1.0
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
