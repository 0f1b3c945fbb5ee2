"""What can happen to a supervisor, and what its machine then wants done."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from lurcher.layout import Layout
from lurcher.runtime.messages import Border, Cut, FromRank, ToRank
from lurcher.runtime.reports import Resumption


class Rules(msgspec.Struct, frozen=True):
    """What the job file says about the course of the job."""

    num_iterations: int
    recovers: bool
    verify_every: int = 0
    copy_every: int = 0
    start_deadline_s: float = 120.0
    step_deadline_s: float = 60.0


class Progress(NamedTuple):
    """A rank's own word on how far it is, in the order in which one is behind another.

    Who waits for another rank is seen to do so all the time (`waits_ns`, where its backend listens while it waits), who hangs is not.
    """

    waits_ns: int
    generation: int
    iteration: int
    chunk: int
    at_ns: int


class Exit(NamedTuple):
    """A process that has ended: whether a signal did it, and how, in words."""

    rank: int
    killed: bool
    how: str


class _Value(msgspec.Struct, frozen=True):
    """Events and effects are frozen values."""


# --- events ----------------------------------------------------------------------------------------------------------------------


class Heard(_Value, frozen=True):
    """A message of `rank`."""

    rank: int
    message: FromRank


class Exited(_Value, frozen=True):
    """Processes have ended that were not told to; all that are known by now."""

    exits: tuple[Exit, ...]


class Closed(_Value, frozen=True):
    """The pipe of a rank has ended."""

    rank: int


class GraceOver(_Value, frozen=True):
    """Whoever caused a failure would be known to be dead by now."""


class Overdue(_Value, frozen=True):
    """No rank got on for as long as the phase allows; how far each is."""

    progress: tuple[tuple[int, Progress], ...]


class LateToJoin(_Value, frozen=True):
    """A process that was started to take part again has not come up in time."""

    rank: int


class Interrupted(_Value, frozen=True):
    """The user wants the job to stop."""


class Bordered(_Value, frozen=True):
    """Answer to AskBorder: what the director orders, and which absent ranks it wants back."""

    border: Border
    returning: tuple[int, ...] = ()


class Compared(_Value, frozen=True):
    """Answer to Compare: what differs, in words; empty if nothing does."""

    difference: str


class Fenced(_Value, frozen=True):
    """Answer to Fence: these processes have ended, or their leases have."""

    ranks: frozenset[int]


class Chosen(_Value, frozen=True):
    """Answer to AskDirector."""

    resumption: Resumption | None


SupervisorEvent = Heard | Exited | Closed | GraceOver | Overdue | LateToJoin | Interrupted | Bordered | Compared | Fenced | Chosen


# --- effects that are answered -----------------------------------------------------------------------------------------------------


class AskBorder(_Value, frozen=True):
    """What shall the commit of `iteration` name? `absent` ranks could be started again."""

    iteration: int
    absent: frozenset[int]


class Compare(_Value, frozen=True):
    """Compare the digests that came for `iteration`."""

    iteration: int


class Fence(_Value, frozen=True):
    """End these processes, and make sure that they are."""

    ranks: frozenset[int]


class AskDirector(_Value, frozen=True):
    """How to go on without `lost`, with `iteration` of `layout` open."""

    lost: tuple[int, ...]
    layout: Layout
    iteration: int
    why: str
    cut: Cut | None


# --- effects that are done at once -------------------------------------------------------------------------------------------------


class Send(_Value, frozen=True):
    """Tell a rank; one that is gone cannot be told, and that is known soon enough."""

    rank: int
    message: ToRank


class Start(_Value, frozen=True):
    """Start the process of an absent rank again; when it was, `layout` was in force and `iteration` the next one."""

    rank: int
    layout: Layout
    iteration: int


class TellStarted(_Value, frozen=True):
    """All ranks run."""


class TellObserved(_Value, frozen=True):
    """An iteration was committed."""

    iteration: int
    layout: Layout


class TellBenched(_Value, frozen=True):
    """The border's benchmarks are over; some ranks gave none in time."""

    ranks: frozenset[int]
    missing: frozenset[int]


class TellResumed(_Value, frozen=True):
    """The job goes on after a loss."""

    layout: Layout
    iteration: int


class TellRevived(_Value, frozen=True):
    """A rank that was lost takes part again."""

    rank: int


class End(_Value, frozen=True):
    """The job is over; `words` name whoever it died of."""

    how: Literal["done", "died", "interrupted"]
    words: str = ""


SupervisorEffect = (
    AskBorder | Compare | Fence | AskDirector | Send | Start | TellStarted | TellObserved | TellBenched | TellResumed | TellRevived | End
)
