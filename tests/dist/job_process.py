"""Runs `lurcher train` as a user would, in a process of its own, and looks after what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE_S = 90.0

SMALL_JOB = """
[job]
iterations = {iterations}
[layout]
tp = {tp}
pp = {pp}
dp = {dp}
num_microbatches = 8
[model]
hidden = 32
num_heads = 8
seq_len = 32
[pace]
token_us = 60.0
[run]
step_deadline_s = {step_deadline_s}
on_death = "{on_death}"
"""


class JobProcess:
    """One running `lurcher train`."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        tp: int = 2,
        pp: int = 1,
        dp: int = 2,
        iterations: int = 400,
        step_deadline_s: float = 20.0,
        on_death: str = "end",
    ) -> None:
        self.run_dir = folder / "run"
        job = folder / "job.toml"
        job.write_text(SMALL_JOB.format(tp=tp, pp=pp, dp=dp, iterations=iterations, step_deadline_s=step_deadline_s, on_death=on_death))
        command = [sys.executable, "-m", "lurcher", "train", str(job), "--run-dir", str(self.run_dir), "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=folder)
        self.pids: dict[int, int] = {}

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def wait_for_iteration(self, iteration: int) -> None:
        """Until the job trains and has logged so many iterations, by its own plain progress lines on stderr."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            line = self.process.stderr.readline()
            if line.startswith("iteration ") and int(line.split()[1].split("/")[0]) > iteration:
                state = json.loads((self.run_dir / "state.json").read_text())
                self.pids = {int(r): pid for r, pid in state["ranks"].items()}
                return
            assert line or self.process.poll() is None, "the job ended early"
        raise AssertionError(f"no iteration {iteration} within {DEADLINE_S} s")

    def finish(self, deadline_s: float) -> tuple[int, dict[str, Any], str]:
        """Exit code, verdict and stderr; fails if the job is not over by the deadline."""
        out, err = self.process.communicate(timeout=deadline_s)
        return self.process.returncode, json.loads(out) if out else {}, err


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], deadline_s: float = 10.0) -> bool:
    """Whether the condition holds before the deadline."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def children_of_session(sid: int) -> list[int]:
    """Processes of a session: whatever a job started, however it is related."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == sid and alive(int(entry.name)):
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found
