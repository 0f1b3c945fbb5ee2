"""What the supervisor tells the director, and what it asks of it. Without torch, so that deciding needs none."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.records import BenchResult
from lurcher.runtime.messages import Border


class StepReport(msgspec.Struct, frozen=True):
    """One committed iteration, as all ranks reported it."""

    iteration: int
    layout: Layout
    loss: float
    grad_norm: float
    lr: float
    events: NDArray[np.void]
    """EVENT rows of all ranks."""
    window_ns: dict[int, tuple[int, int]]
    """Per rank: from its last acknowledgement to this one."""
    usage: NDArray[np.int64]
    """(real CPU ns, emulated ns) per chunk, and per rank (ns, 0) for all else; shape (chunks + ranks, 2)."""


class Director(Protocol):
    """Who decides at the borders."""

    def started(self, pids: dict[int, int]) -> None:
        """All ranks are built; their process ids."""
        ...

    def border(self, iteration: int) -> Border:
        """What the commit of `iteration` shall name. Called with all ranks waiting: must be immediate."""
        ...

    def observe(self, report: StepReport) -> None:
        """A committed iteration, told while the next one runs."""
        ...

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Benchmarks of the last border; `missing` ranks gave none before the deadline."""
        ...

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str) -> Layout | None:
        """`ranks` are gone, now or in an attempt before, which `why` says in words: the layout to go on with from `iteration`, or None to end the job."""
        ...

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on with `iteration` under `layout`, so long after a rank was missed."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """How the job ended."""

    kind: Literal["done", "interrupted"]
    iterations: int
