"""What befalls the ranks of bench/chaos.py: how a job's strikes are drawn, and how each of them falls."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import MutableSequence, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from lurcher.runtime.backend import Backend
from lurcher.runtime.backends import backend_named
from lurcher.runtime.messages import Spec
from lurcher.runtime.worker import PROGRESS_FIELDS, rank_main

BackendName = Literal["local", "gloo", "fakenccl"]
Moment = Literal["iteration", "reconfiguration", "benchmark"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""Strikes from outside; all others are hangs of the rank's own making."""
HANGS = ("stop", "spin", "sleep", "read")
SCENARIOS = {
    # name: how often it is drawn
    "one killed": 4,
    "two killed at once": 3,
    "several killed": 3,
    "a node killed": 3,
    "stop": 2,
    "spin": 2,
    "sleep": 2,
    "read": 2,
    "killed and hanging at once": 2,
    "killed in a reconfiguration": 5,
    "stopped in a reconfiguration": 2,
    "killed in a benchmark": 3,
    "killed in a copy": 2,
    "stopped in a copy": 2,
}
COPY_EVERY = 3
"""Iterations between two copies of the state."""
COPY_S = 0.006
"""A copy is under way within so long after the seal before it."""
NODE_SIZE = 2
MOST_BEATS = 6
"""Signs of life that every rank gives in every iteration, whatever its part: its start, chunks, and before the sums at the end."""


class Strike(NamedTuple):
    """`ranks` are hit by `kind`. From outside `delay_s` after `iteration` was sealed (-1: after the start), from inside at a sign of life of it.

    Strikes of the moments `reconfiguration` and `benchmark` fall after the border of `iteration` has ordered one.
    """

    ranks: tuple[int, ...]
    kind: str
    iteration: int
    delay_s: float
    beat: int = 0
    moment: Moment = "iteration"

    def __str__(self) -> str:
        who = f"{self.kind} {','.join(map(str, self.ranks))}"
        if self.kind not in SIGNALS:
            return f"{who} at sign of life {self.beat} of iteration {self.iteration}"
        return f"{who} {self.delay_s * 1e3:.0f} ms after " + (
            f"iteration {self.iteration}" if self.moment == "iteration" else f"the order of a {self.moment}"
        )


def draw(rng: random.Random, num_ranks: int, num_iterations: int) -> tuple[str, tuple[Strike, ...]]:
    """The name of a scenario and its strikes; at least one rank is spared, and no strike comes so late that nothing is left to compute."""
    name = rng.choices(list(SCENARIOS), list(SCENARIOS.values()))[0]
    ranks = rng.sample(range(num_ranks), num_ranks)

    def when(first: int = -1) -> int:
        return rng.randint(first, num_iterations - 3)

    def outside(who: Sequence[int], kind: str, iteration: int, moment: Moment = "iteration") -> Strike:
        return Strike(tuple(who), kind, iteration, rng.uniform(0.0, 0.12), moment=moment)

    def inside(who: int, kind: str) -> Strike:
        iteration = when(0)
        # The first sign of life of iteration 0 comes from the start: a rank that is lost there ends the job.
        return Strike((who,), kind, iteration, 0.0, rng.randint(1, MOST_BEATS) + (iteration == 0))

    iteration = when()
    if name == "one killed":
        return name, (outside(ranks[:1], "kill", iteration),)
    if name == "two killed at once":
        return name, tuple(outside([rank], "kill", iteration) for rank in ranks[:2])
    if name == "several killed":
        return name, tuple(outside([rank], "kill", when()) for rank in ranks[: min(3, num_ranks - 1)])
    if name == "a node killed":
        node = ranks[0] // NODE_SIZE
        return name, (outside(range(node * NODE_SIZE, (node + 1) * NODE_SIZE), "kill", iteration),)
    if name == "killed and hanging at once":
        return name, (outside(ranks[:1], "kill", iteration), outside(ranks[1:2], "stop", iteration))
    if name == "stop":
        return name, (outside(ranks[:1], "stop", iteration),)
    if name in HANGS:
        return name, (inside(ranks[0], name),)
    if name.endswith("in a copy"):
        border = rng.choice(range(COPY_EVERY - 1, num_iterations - 2, COPY_EVERY))
        first = Strike((ranks[0],), "stop" if name.startswith("stopped") else "kill", border, rng.uniform(0.0, COPY_S))
        return name, (first, outside(ranks[1:2], "kill", when())) if rng.random() < 0.3 else (first,)
    moment: Moment = "benchmark" if name.endswith("benchmark") else "reconfiguration"
    first = outside(ranks[:1], "stop" if name.startswith("stopped") else "kill", when(0), moment)
    return name, (first, outside(ranks[1:2], "kill", when())) if rng.random() < 0.3 else (first,)


class Ambush:
    """The shared array into which `rank` writes its progress; strikes from inside fall where it gives the sign of life that they wait for.

    A rank does so at each chunk's start and before all that may block: a strike there is one before a collective, a receive or work.
    """

    def __init__(self, progress: MutableSequence[int], rank: int, strikes: Sequence[Strike]) -> None:
        self._progress, self._base = progress, rank * PROGRESS_FIELDS
        self._strikes = [strike for strike in strikes if rank in strike.ranks and strike.kind not in SIGNALS]
        self._beats: dict[int, int] = {}

    def __getitem__(self, index: Any) -> Any:
        return self._progress[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._progress[index] = value
        time_of_sign = self._base + PROGRESS_FIELDS - 1
        if index != time_of_sign and not (isinstance(index, slice) and index.stop == time_of_sign + 1):
            return  # not the last field of a sign of life
        iteration = self._progress[time_of_sign - 2]
        self._beats[iteration] = self._beats.get(iteration, 0) + 1
        for strike in self._strikes:
            if strike.iteration == iteration and strike.beat <= self._beats[iteration]:
                _hang(strike.kind)


def _hang(kind: str) -> None:
    """Never returns: `spin` never leaves a C function, and so keeps the interpreter's lock; `read` waits for what nobody writes."""
    while True:
        if kind == "spin":
            sum(range(1 << 62))
        elif kind == "sleep":
            time.sleep(3600.0)
        else:
            os.read(os.pipe()[0], 1)


def struck_rank_main(
    spec_bytes: bytes, conn: Connection, progress: MutableSequence[int], *, strikes: tuple[Strike, ...], backend: BackendName
) -> None:
    """A rank's process, on a backend by name, with its strikes from inside."""
    rank = msgspec.msgpack.decode(spec_bytes, type=Spec).rank
    rank_main(spec_bytes, conn, Ambush(progress, rank, strikes), made(backend, rank))


def made(backend: BackendName, rank: int) -> Backend:
    """The backend; the fake one belongs to the tests."""
    if backend != "fakenccl":
        return backend_named(backend, rank)
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.fakenccl.backend import fake_backend

    return fake_backend()
