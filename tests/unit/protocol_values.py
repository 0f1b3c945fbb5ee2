"""What there is in the world of `protocol_world`: a job and its faults, one rank's facts, everything; and what layouts alone say of losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from lurcher.layout import Layout
from lurcher.records import BenchResult, Component
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.protocol.rank import RankMachine
from lurcher.runtime.protocol.supervisor import SupervisorMachine

EXACT, BACK, STOP = 1, 2, 4
"""How a job may end, as bits: every iteration once; some again, from a common cut; cleanly before its end."""
BENCHED = BenchResult(Component.of_rank(0), "gemm", 1.0, 1)


class Wrong(AssertionError):
    """An invariant does not hold."""


class Scenario(NamedTuple):
    """A job and what may go wrong in it. `borders` are the director's orders; `without` names its layout for the ranks that are left.

    So many `faults` in all happen, to any of `victims` (none: to all), at any moment: "kill", "hang", "cut" (a pipe ends), "partition" (a rank that no message
    reaches, nor a kill), "link" (a connection between ranks fails), "leader" (the supervisor dies), "hasty" (a deadline passes although all is
    well), "again" (a message comes twice).
    """

    layout: Layout
    num_iterations: int
    without: Callable[[tuple[int, ...], Layout], Layout]
    kinds: tuple[str, ...] = ("kill",)
    faults: int = 1
    borders: Mapping[int, Border] = MappingProxyType({})
    verify_every: int = 0
    copy_every: int = 0
    returning: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    rank_machine: type[RankMachine] = RankMachine
    supervisor_machine: type[SupervisorMachine] = SupervisorMachine


class Slot(NamedTuple):
    """One rank: its process, its pipes, and what is true of its state. Machines, acts and messages are numbers, to be compared fast.

    `status`: live, hung, partitioned, dead (not noticed yet), ended (well, not noticed), gone (noticed), away (not started).
    """

    status: str
    machine: int = -1
    act: int = -1
    down: tuple[int, ...] = ()
    up: tuple[int, ...] = ()
    entered: tuple[tuple[str, int, int], ...] = ()  # the last two common acts that it has done its part of
    connected: int = -1  # the generation whose connections it made last, or makes
    dropped: int = -1  # connections of this generation and of those before are let go
    progress: tuple[int, int, int] = (0, 0, -1)
    computed: tuple[int, int] | None = None
    applied: int = 0  # steps in its state
    staged: tuple[int, int] | None = None  # generation and steps of what is prepared
    complete: tuple[int, int] | None = None  # cuts that it keeps, as (iteration, generation)
    latest: tuple[int, int] | None = None
    can_confirm: bool = False
    spare: tuple[str, int] | None = None  # a message that will come once more

    @property
    def runs(self) -> bool:
        return self.status in ("live", "partitioned")


class State(NamedTuple):
    """Everything; the supervisor and the slots are numbers."""

    supervisor: int
    slots: tuple[int, ...]
    faults: int
    ended: str = ""
    fencing: frozenset[int] = frozenset()
    leader_dead: bool = False
    stepped: int = 0  # the highest generation that anybody has stepped in
    struck: frozenset[int] = frozenset()
    innocent: bool = True  # no deadline has passed too early
    allowed: int = EXACT
    went_back: bool = False


def hold(layout: Layout) -> dict[int, frozenset[int]]:
    """Layers that each rank of these layouts (one rank a stage) has the state of."""
    return {rank: frozenset(range(c.first, c.end)) for _, _, stage in layout.stages() for rank in stage.ranks for c in stage.chunks}


@cache
def covers(layout: Layout, lost: frozenset[int]) -> bool:
    """Whether the ranks that are left hold every layer."""
    held = hold(layout)
    return frozenset().union(*(layers for rank, layers in held.items() if rank not in lost)) == frozenset(range(layout.num_layers))


def cut_covers(cut: Cut, lost: frozenset[int]) -> bool:
    """Whether the ranks that are left, and the copies that they keep, are the whole state of a cut."""
    if cut.iteration == 0:
        return True
    left = set(cut.layout.members) - lost - set(cut.gone)
    kept_for = {rank for rank, holder in cut.holders if holder in left}
    return covers(cut.layout, frozenset(set(cut.layout.ranks) - left - kept_for))


def ring(layout: Layout) -> tuple[tuple[int, int], ...]:
    """Each member's copy is kept by the next."""
    members = layout.members
    return tuple((rank, members[(i + 1) % len(members)]) for i, rank in enumerate(members)) if len(members) > 1 else ()


def bits_of(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in (EXACT, BACK, STOP) if mask & bit)
