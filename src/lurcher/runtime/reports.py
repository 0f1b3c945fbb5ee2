"""What the supervisor tells the director, and what it asks of it. Without torch, so that deciding needs none."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.records import BenchResult
from lurcher.runtime.messages import Border, Cut

__all__ = ["Cut", "Director", "Outcome", "Resumption", "StepReport"]


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
    moved_bytes: int = 0
    """Bytes of state that passed between ranks before this iteration, for a change of layout."""
    copy_s: float = 0.0
    """How long keeping a copy took before this iteration, on the rank where it took longest; 0 where none was due."""
    copy_bytes: tuple[int, ...] = ()
    """Memory of the copies on each rank."""


class Resumption(NamedTuple):
    """How to go on without ranks that are gone. `cut` None: from the present state, at the present iteration; else all go back to it."""

    layout: Layout
    cut: Cut | None = None


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

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        """`ranks` are gone, now or in an attempt before, which `why` says in words; `iteration` would be the next to count: how to go on, or None to end.

        `cut` is the last one that all ranks had, if there is one.
        """
        ...

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on with `iteration` under `layout`, so long after a rank was missed. Iterations from there on are computed again, if they were before."""
        ...

    def returning(self, absent: tuple[int, ...]) -> tuple[int, ...]:
        """Which of the ranks that were lost shall be started again now. Asked at borders, with `run.respawn` only: must be immediate."""
        ...

    def revived(self, rank: int, pid: int) -> None:
        """A rank that was lost takes part again, as a standby, with nothing of the state."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """How the job ended."""

    kind: Literal["done", "interrupted"]
    iterations: int
    sketch: dict[str, tuple[float, ...]] = {}
    """Of the state in the end (`sketch.py`), where `run.verify` asks for it."""
