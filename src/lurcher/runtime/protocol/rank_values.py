"""What can happen to a rank, and what its machine then wants done."""

from __future__ import annotations

from typing import Literal

import msgspec

from lurcher.layout import Layout
from lurcher.runtime.messages import Cut, FromRank, ToRank
from lurcher.validate.rounds import Round


class _Value(msgspec.Struct, frozen=True):
    """Events and effects are frozen values."""


# --- events ----------------------------------------------------------------------------------------------------------------------


class Heard(_Value, frozen=True):
    """The next message of the supervisor."""

    message: ToRank


class Done(_Value, frozen=True):
    """The act under way is complete; `message` is what it has to tell, `plan` the hash of what it prepared (see Ready)."""

    message: FromRank | None = None
    plan: str = ""


class PeerLost(_Value, frozen=True):
    """The act under way failed, because a rank that it needs does not answer."""

    reason: str


class LeaseOver(_Value, frozen=True):
    """The rank has waited for the supervisor for as long as it may: it could have been given up, and others may go on without it."""

    after_s: float


class SupervisorGone(_Value, frozen=True):
    """The pipe has ended."""


RankEvent = Heard | Done | PeerLost | LeaseOver | SupervisorGone


# --- acts: each takes a while, and ends with Done or PeerLost ----------------------------------------------------------------------


class Build(_Value, frozen=True):
    """Make the engine, with the initial state, or without any as a standby; `iteration` steps were taken so far."""

    layout: Layout
    iteration: int


class Compute(_Value, frozen=True):
    """Everything of the iteration but the step; Done brings the Ack."""

    generation: int
    iteration: int


class KeepCopy(_Value, frozen=True):
    """Keep the state as it is after `iteration` steps, and what the ward of this rank sends."""

    iteration: int
    holders: tuple[tuple[int, int], ...]


class Digest(_Value, frozen=True):
    """Hash the state; Done brings the Digests."""

    generation: int
    iteration: int


class Bench(_Value, frozen=True):
    """Run the benchmark of this rank, if asked for, then the links' rounds; Done brings BenchDone. Whoever does not answer fails none of it."""

    generation: int
    iteration: int
    alone: bool = True
    rounds: tuple[Round, ...] = ()


class Prepare(_Value, frozen=True):
    """Get all that the layout needs, beside what is there."""

    layout: Layout
    lost: tuple[int, ...] = ()
    cut: Cut | None = None


Act = Build | Compute | KeepCopy | Digest | Bench | Prepare


# --- effects that are done at once -------------------------------------------------------------------------------------------------


class Send(_Value, frozen=True):
    """Tell the supervisor."""

    message: FromRank


class Step(_Value, frozen=True):
    """Take the optimizer step on what was computed."""

    iteration: int


class Switch(_Value, frozen=True):
    """The layout that was prepared is in force."""


class Discard(_Value, frozen=True):
    """Forget what was done since the last acknowledgement: it does not count."""


class Abandon(_Value, frozen=True):
    """Let all connections go, so that whoever waits for this rank is told; the state stays."""


class End(_Value, frozen=True):
    """The process ends."""

    how: Literal["done", "stopped", "failed"]
    reason: str = ""


RankEffect = Act | Send | Step | Switch | Discard | Abandon | End
