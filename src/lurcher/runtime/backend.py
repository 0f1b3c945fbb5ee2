"""What the runtime asks of whatever carries its bytes between ranks, and the one way in which it waits for it.

Backends differ in what happens when a peer dies. Sockets and gloo say so at once; on NCCL nothing is raised, the call spins until
somebody aborts it, and what it leaves behind is garbage. So the runtime never blocks inside a backend: it asks whether the work is
done, again and again, and meanwhile listens to its supervisor. Whoever is interrupted aborts the whole generation, and uses nothing
that it was waiting for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch.distributed import Store

from lurcher.errors import DeadlineExpired

SPIN_S = 2e-4
"""For so long a wait only gives its turn away; after it, it sleeps for an eighth of what it has waited, which costs it that much more at most."""
MOST_SLEEP_S = 2e-3
LISTEN_S = 2e-2
"""How often a wait asks whether it is interrupted."""


class Interrupted(ConnectionError):
    """The supervisor has something to say while this rank waits for another one: what it waits for will never count."""


def never() -> bool:
    """Nobody interrupts."""
    return False


class Patience(NamedTuple):
    """How long a rank waits for others: to do their part, and to connect; and what ends any wait at once."""

    timeout_s: float
    connect_s: float
    interrupted: Callable[[], bool] = never

    def wait(self, is_done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Return once `is_done`. Raises DeadlineExpired (its text begins with `what`) after `timeout_s`, and Interrupted."""
        begin_s = time.monotonic()
        listen_s = LISTEN_S
        while not is_done():
            waited_s = time.monotonic() - begin_s
            if waited_s > timeout_s:
                raise DeadlineExpired(f"{what} for {timeout_s:g} s")
            if waited_s > listen_s:
                if self.interrupted():
                    raise Interrupted(f"{what} for {waited_s:.2f} s, until the supervisor interrupted")
                listen_s = waited_s + LISTEN_S
            time.sleep(0.0 if waited_s < SPIN_S else min(waited_s / 8, MOST_SLEEP_S))


class Pending(Protocol):
    """A sum that was started."""

    def wait(self) -> None:
        """Return once it is complete. Raises RuntimeError or ConnectionError for a lost peer, DeadlineExpired, Interrupted."""
        ...


class Group(Protocol):
    """Ranks that sum together."""

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Start summing `tensor` in place; the same bits on every rank."""
        ...

    def close(self) -> None:
        """Abort what is under way, from whatever thread; it is over at once, and no other call may follow."""
        ...


class Link(Protocol):
    """What a rank exchanges with single others, and with the ranks of its stage. Waits raise what `Pending.wait` raises."""

    def send(self, rank: int, kind: int, seq: int, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor under a number; it may be changed once this returns. Never waits for the receiver to want it."""
        ...

    def receive(self, rank: int, kind: int, seq: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor that `rank` sent under that number, with shape and dtype of `like`; in whatever order they were sent."""
        ...

    def gather(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> list[torch.Tensor]:
        """The contiguous tensors of `ranks`, all of one shape, in that order; this rank's own is `tensor` itself."""
        ...

    def sum_in_place(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Add up the contiguous tensors of `ranks`, this one among them, in that order: the same bits everywhere."""
        ...

    def complete(self) -> None:
        """Return once everything that was sent has left this rank for good."""
        ...

    def close(self) -> None:
        """Abort what is under way and let every peer go."""
        ...


class Backend(Protocol):
    """Makes what a generation needs. `store` is where its ranks meet, under names that no other use has."""

    def fresh(self) -> Backend:
        """The same for another use. Groups of one and the same share threads; between one that is aborted and one that is made this must not be."""
        ...

    def group(self, ranks: tuple[int, ...], rank: int, store: Store, patience: Patience) -> Group:
        """A group that `ranks` make together, all in the same order; raises DeadlineExpired or RuntimeError where one does not come."""
        ...

    def links(self, rank: int, peers: Collection[int], together: tuple[int, ...], store: Store, patience: Patience) -> Link:
        """Links to `peers`, each of which names `rank` in turn; `together` are the ranks that gather, this one among them, or none."""
        ...


def sum_of_parts(parts: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """Write the sum of `parts`, in their order, into `tensor`, which is one of them."""
    if len(parts) == 2:  # then either order gives the same bits
        tensor.add_(parts[1] if parts[0] is tensor else parts[0])
        return
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    tensor.copy_(total)
