"""Whether a job of bench/chaos.py ended as it must, worked out apart from the code under test; and whether it left anything behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.runtime.reports import StepReport
from lurcher.runtime.shapes import held_tensors

TOLERANCE = 1e-9
LISTENS_TCP = "0A"


class Loss(NamedTuple):
    """What the director was told when `ranks` were gone, with the last complete cut (iteration, layout, holders) if there is one, and what it said."""

    ranks: tuple[int, ...]
    layout: Layout
    iteration: int
    cut: Any | None
    went_on: bool


class Seen(NamedTuple):
    """A job as its director saw it: `passed` are "committed" and "resumed" with iterations, in their order."""

    losses: list[Loss]
    reports: list[StepReport]
    passed: list[tuple[str, int]]
    pids: dict[int, int]


def judge(config: JobConfig, seen: Seen, struck: Collection[int], ended: str, reference: Seen) -> str:
    """What is wrong with the outcome; empty if nothing is."""
    for loss in seen.losses:
        if not set(loss.ranks) <= set(struck):
            return f"ranks {loss.ranks} were lost; only {sorted(struck)} were struck"
        if loss.went_on != (_survivors_hold_all(config, loss.layout, loss.ranks) or _copies_hold_all(config, loss)):
            return f"ranks {loss.ranks} were lost, and the job {'went on' if loss.went_on else 'ended'}, which it must not"
    must_end = any(not loss.went_on for loss in seen.losses)
    if must_end == (ended == "done"):
        return f"the job ended so: {ended}"
    return _order(config, seen, must_end) or _numbers(seen.reports, reference.reports)


def _order(config: JobConfig, seen: Seen, must_end: bool) -> str:
    """Iterations count once, one after the other; only a resumption may go back, no further than copies are apart: one more for each loss, which may
    have fallen into a copy."""
    most_back = config.run.copy_every and config.run.copy_every + len(seen.losses)
    due = 0
    for what, iteration in seen.passed:
        if what == "resumed" and due - most_back <= iteration <= due:
            due = iteration
        elif what == "committed" and iteration == due:
            due += 1
        else:
            return f"iteration {iteration} was {what} when {due} was due"
    return "" if must_end or due == config.job.iterations else f"the job was done after {due} iterations"


def _numbers(reports: list[StepReport], expected: list[StepReport]) -> str:
    by_iteration = {report.iteration: report for report in expected}
    for seen in reports:
        same = by_iteration[seen.iteration]
        error = abs(seen.loss / same.loss - 1.0), abs(seen.grad_norm / same.grad_norm - 1.0)
        if not max(error) <= TOLERANCE:
            return f"loss and norm of iteration {seen.iteration} are off by {error[0]:.1e} and {error[1]:.1e}"
    return ""


def _survivors_hold_all(config: JobConfig, layout: Layout, lost: Collection[int], holders: Collection[tuple[int, int]] = ()) -> bool:
    """Whether the ranks of `layout` that are left hold every atom, as their own or as a copy of another rank's: what decides if a job can go on."""
    held = {rank: {(h.spec.name, atom) for h in held_tensors(config.model, layout, rank) for atom in range(h.first, h.end)} for rank in layout.ranks}
    left = {rank for rank in held if rank not in lost} | {rank for rank, holder in holders if holder not in lost and rank in held}
    return set().union(*(held[rank] for rank in left)) == set().union(*held.values())


def _copies_hold_all(config: JobConfig, loss: Loss) -> bool:
    """What was lost between the cut and now has nothing of it either. The state before the first iteration comes from the seed."""
    if loss.cut is None or loss.cut.iteration == 0:
        return loss.cut is not None
    lost = {*loss.ranks, *loss.cut.gone, *set(loss.cut.layout.members) - set(loss.layout.members)}
    return _survivors_hold_all(config, loss.cut.layout, lost, loss.cut.holders)


class Footprint(NamedTuple):
    """What this process and those below it hold of the machine."""

    processes: frozenset[int]
    listeners: frozenset[str]
    files: frozenset[str]
    num_descriptors: int
    num_threads: int


def footprint(folder: Path, ranks: Collection[int] = ()) -> Footprint:
    """Taken now: processes below this one and those of `ranks` that live, their listening sockets, all files of `folder`, shared memory of theirs."""
    gc.collect()
    processes = _descendants() | {pid for pid in ranks if _is_alive(pid)}
    mine = {os.getpid(), *processes}
    shared = {str(path) for path in Path("/dev/shm").iterdir() if any(str(pid) in path.name.replace("_", "-").split("-") for pid in {*mine, *ranks})}
    files = {str(path) for path in folder.rglob("*")}
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return Footprint(frozenset(processes), frozenset(_listeners(mine)), frozenset(files | shared), descriptors, threading.active_count())


def left_behind(before: Footprint, after: Footprint) -> str:
    """What a job has left, in words; empty if nothing."""
    left = {
        "processes": after.processes - before.processes,
        "listening sockets": after.listeners - before.listeners,
        "files": after.files - before.files,
    }
    words = [f"{name} {sorted(found)}" for name, found in left.items() if found]
    for name, more in (("open files", after.num_descriptors - before.num_descriptors), ("threads", after.num_threads - before.num_threads)):
        if more > 0:
            words.append(f"{more} {name}")
    return f"left behind: {', '.join(words)}" if words else ""


def _descendants() -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _stat(int(entry.name))) is not None and status[0] != "Z":
            parents[int(entry.name)] = int(status[1])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in {os.getpid(), *found}} - found:
        found |= more
    return found


def _is_alive(pid: int) -> bool:
    status = _stat(pid)
    return status is not None and status[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    """State, parent and what follows; None for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _listeners(pids: Collection[int]) -> set[str]:
    """Listening TCP and Unix sockets that the processes hold."""
    owned = {name for pid in pids for name in _open_files(pid)}
    found = set()
    for protocol in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS_TCP and f"socket:[{fields[9]}]" in owned:
                found.add(f"{protocol} {fields[1]}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        accepts = int(fields[3], 16) & 0x10000
        if accepts and f"socket:[{fields[6]}]" in owned:
            found.add(f"unix {fields[7] if len(fields) > 7 else fields[6]}")
    return found


def _open_files(pid: int) -> set[str]:
    """Names of what a process has open; what it closes meanwhile is left out."""
    found = set()
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            found.add(entry.readlink().name)
        except OSError:
            continue
    return found
