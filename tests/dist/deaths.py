"""Jobs whose ranks keep copies and die: what a supervisor would order, played by the ranks themselves from the same list."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

import msgspec
import numpy as np
from spawned import DEADLINE_S, GROUP_TIMEOUT_S
from torch.distributed import TCPStore

from lurcher.config import JobConfig
from lurcher.layout import Layout
from lurcher.probe.recorder import Recorder
from lurcher.runtime.copies import choose_holders
from lurcher.runtime.engine import Engine
from lurcher.runtime.instruments import NullDevice
from lurcher.runtime.messages import Cut

PEER_LOST = (ConnectionError, RuntimeError)
KINDS = ("param", "exp_avg", "exp_avg_sq")


class Death(NamedTuple):
    """`ranks` are lost while `iteration` is computed, or while copies are sent just before it. The others go on with `layout`, from the cut
    after `back_to` iterations, or from the present state."""

    iteration: int
    ranks: tuple[int, ...]
    layout: Layout
    back_to: int | None = None
    in_copy: bool = False


class MortalJob(NamedTuple):
    """Training that keeps copies every so many iterations; `changes` are layouts adopted before an iteration, once each."""

    name: str
    config: JobConfig
    layout: Layout
    copy_every: int
    deaths: tuple[Death, ...]
    iterations: int = 8
    changes: tuple[tuple[int, Layout], ...] = ()

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Working and standby ranks of the first layout."""
        return self.layout.members


Atoms = dict[tuple[str, str, int], str]
"""A hash per (kind, tensor, atom)."""


class MortalResult(NamedTuple):
    """What one rank ends with; one that died has no state. `taken` by iteration and `restored` by death are the state at a cut, and after going back."""

    state: dict[str, np.ndarray]
    digests: dict[str, str]
    losses: list[float]
    norms: list[float]
    num_steps: int
    received_bytes: list[int]
    copied_bytes: list[int]
    copy_bytes: int
    taken: dict[int, Atoms]
    restored: list[Atoms]
    events: np.ndarray
    """Of the last iteration."""


class _Rank:
    """One rank's part of a job."""

    def __init__(self, job: MortalJob, rank: int, store: TCPStore) -> None:
        self.job, self.rank, self.store = job, rank, store
        self._meet("begin", len(job.all_ranks))  # some are still in the job before
        self.recorder = Recorder(rank)
        self.engine = Engine(job.config, job.layout, rank, store, self.recorder, NullDevice(), lambda *_: None, GROUP_TIMEOUT_S)
        self.cuts = {0: Cut(0, job.layout, ())}
        self.missed: set[int] = set()  # cuts that a death prevented
        self.iteration = 0
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.received_bytes: list[int] = []
        self.copied_bytes: list[int] = []
        self.taken: dict[int, Atoms] = {}
        self.restored: list[Atoms] = []

    def run(self) -> MortalResult:
        changes, deaths = list(self.job.changes), list(self.job.deaths)
        while self.iteration < self.job.iterations:
            if changes and changes[0][0] == self.iteration:
                self.engine.adopt(self._next(changes.pop(0)[1]))
            death = deaths[0] if deaths and deaths[0].iteration == self.iteration else None
            if death is None or not death.in_copy:
                self._copy_if_due()
            if death is not None:
                deaths.pop(0)
                if self.rank in death.ranks:
                    self.engine.close()
                    return self._result(state={})
                self._survive(death, len(deaths))
                continue
            self.recorder.drain()
            result = self.engine.compute(self.iteration)
            self.losses.append(result.loss)
            self.norms.append(result.grad_norm)
            self.engine.step(self.iteration)
            self.iteration += 1
        return self._result({name: value.numpy() for name, value in self.engine.state().items() if not name.startswith("grad/")})

    def _copy_if_due(self) -> None:
        if self.iteration % self.job.copy_every or self.iteration in self.cuts.keys() | self.missed:
            return
        holders = self._holders()
        self.taken[self.iteration] = self._atoms()
        self.copied_bytes.append(self.engine.keep_copy(self.iteration, holders))
        self.cuts[self.iteration] = Cut(self.iteration, self.engine.layout, tuple(holders.items()))

    def _holders(self) -> Mapping[int, int]:
        return choose_holders(self.engine.layout, dict.fromkeys(self.engine.layout.members, "here"))

    def _survive(self, death: Death, key: int) -> None:
        """Be thrown out of the iteration, or of the copy, and go on."""
        try:
            if death.in_copy:
                self.missed.add(self.iteration)
                self.engine.keep_copy(self.iteration, self._holders())
            else:
                self.engine.compute(self.iteration)
        except PEER_LOST:
            pass
        self.engine.abandon()
        gc.collect()  # what the failed call still refers to may keep sockets open
        self._meet(f"death{key}", len(death.layout.members))
        cut = None if death.back_to is None else self.cuts[death.back_to]
        self.engine.prepare(self._next(death.layout), death.ranks, cut)
        self.received_bytes.append(self.engine.received_bytes)
        self.engine.switch()
        if cut is not None:
            self.iteration = cut.iteration
            self.cuts = {iteration: known for iteration, known in self.cuts.items() if iteration <= cut.iteration}
            self.missed = set()
            self.restored.append(self._atoms())
        del self.losses[self.iteration :], self.norms[self.iteration :]

    def _next(self, layout: Layout) -> Layout:
        return msgspec.structs.replace(layout, generation=self.engine.layout.generation + 1)

    def _meet(self, what: str, count: int) -> None:
        """Wait until so many ranks have come to it."""
        key = f"job{self.job.layout.generation}/{what}"
        if self.store.add(key, 1) == count:
            self.store.set(f"{key}/all", "")
        self.store.wait([f"{key}/all"], timedelta(seconds=DEADLINE_S))

    def _atoms(self) -> Atoms:
        found = {}
        for name, value in self.engine.state().items():
            kind, rest = name.split("/", 1)
            tensor, span = rest.split("[")
            first, end = map(int, span.rstrip("]").split(":"))
            if kind in KINDS:
                parts = [value] if value.dim() == 1 else list(value)
                for atom, part in zip(range(first, end), parts, strict=True):
                    found[kind, tensor, atom] = hashlib.blake2b(part.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        return found

    def _result(self, state: dict[str, np.ndarray]) -> MortalResult:
        digests = self.engine.digests() if state else {}
        num_steps, copy_bytes = self.engine.num_steps, self.engine.copy_bytes
        self.engine.close()
        numbers = (self.losses, self.norms, num_steps, self.received_bytes, self.copied_bytes, copy_bytes)
        return MortalResult(state, digests, *numbers, self.taken, self.restored, self.recorder.drain())


def run_mortal(job: MortalJob, rank: int, store: TCPStore) -> MortalResult:
    """One rank's part of a job, to its death or to the end."""
    return _Rank(job, rank, store).run()
