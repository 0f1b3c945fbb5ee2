"""Every group of one generation, owned by one object and dropped together.

A group that somebody still refers to keeps its sockets open, and then a peer's death no longer reaches the other ranks. So
nobody else holds a torch group: users hold a Handle, which is emptied by `Groups.close`. The groups are made directly from a
store, without torch's global default group, so that a generation leaves nothing behind in the process.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
import torch
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, Store, Work

from lurcher.config import ModelSection
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.runtime.hops import partners
from lurcher.runtime.links import Links
from lurcher.runtime.owners import cut_slices, owner_sets

LOOPBACK_INTERFACE = "lo"


class Membership(msgspec.Struct, frozen=True):
    """The groups that a layout needs, as lists of ranks: all that decides whether built groups fit a layout."""

    world: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    owners: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: ModelSection, layout: Layout) -> Membership:
        """World, whom each rank of it exchanges with directly, owner sets of two ranks and more."""
        links = tuple(partners(layout, rank) for rank in layout.ranks)
        sets = owner_sets(cut_slices(model, layout))
        return cls(layout.ranks, links, tuple(owners for owners in sets if len(owners) > 1))

    def torch_groups(self) -> list[tuple[int, ...]]:
        """World and owner sets, each set of ranks once, in an order that is the same on all ranks."""
        return sorted({ranks for ranks in (self.world, *self.owners) if len(ranks) > 1})


class Handle:
    """One group as its users see it: ranks are the job's, not the group's own numbers."""

    def __init__(self, ranks: tuple[int, ...], group: ProcessGroupGloo, timeout_s: float) -> None:
        self.ranks = ranks
        self._options = AllreduceOptions()
        self._options.timeout = timedelta(seconds=timeout_s)
        self._index = {rank: i for i, rank in enumerate(ranks)}
        self._group: ProcessGroupGloo | None = group

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start summing `tensor` in place over the group."""
        return self._open().allreduce([tensor], self._options)

    def close(self) -> None:
        """Let the torch group go."""
        self._group = None

    def _open(self) -> ProcessGroupGloo:
        if self._group is None:
            raise LurcherError(f"the group of ranks {self.ranks} was closed with its generation")
        return self._group


class Groups:
    """The groups that `rank` belongs to in one generation. A job of one rank has none and needs no store.

    Every blocking call of a group ends after `timeout_s` with a RuntimeError, connecting after `connect_s`.
    """

    def __init__(self, model: ModelSection, layout: Layout, rank: int, store: Store | None, timeout_s: float, connect_s: float) -> None:
        self._open = True
        self._model = model
        self._membership = Membership.of(model, layout)
        self._handles: dict[tuple[int, ...], Handle] = {}
        device = ProcessGroupGloo.create_device(interface=LOOPBACK_INTERFACE) if store is not None else None
        for number, ranks in enumerate(self._membership.torch_groups()):
            if rank not in ranks:
                continue
            if store is None:
                raise LurcherError(f"a layout of {len(layout.ranks)} ranks needs a store to meet at")
            prefixed = PrefixStore(f"gen{layout.generation}/{number}", store)
            group = ProcessGroupGloo(prefixed, ranks.index(rank), len(ranks), _options(connect_s, device))
            self._handles[ranks] = Handle(ranks, group, timeout_s)
        peers = partners(layout, rank)
        self._links = (
            Links(rank, peers, PrefixStore(f"gen{layout.generation}/links", store), timeout_s, connect_s) if store is not None and peers else None
        )

    @property
    def world(self) -> Handle | None:
        """All working ranks; None in a job of one rank."""
        return self._handles.get(self._membership.world)

    def over(self, ranks: tuple[int, ...]) -> Handle | None:
        """The group over an owner set; None for a single rank."""
        return self._handles[ranks] if len(ranks) > 1 else None

    @property
    def links(self) -> Links | None:
        """The rank's sockets to its stage's mates and to neighbouring stages; None where it has neither."""
        return self._links

    @property
    def is_open(self) -> bool:
        """Whether the groups can still be used."""
        return self._open

    def fits(self, layout: Layout) -> bool:
        """Whether the layout needs the very same groups, as after a change of the micro-batch split."""
        return Membership.of(self._model, layout) == self._membership

    def close(self) -> None:
        """Drop every group at once."""
        self._open = False
        for group in self._handles.values():
            group.close()
        self._handles.clear()
        if self._links is not None:
            self._links.close()


def _options(timeout_s: float, device: object) -> ProcessGroupGloo._Options:
    """All groups of a rank share one device, for each device is a thread that polls; and one worker thread a group does, for calls come one by one."""
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    options._devices = [device]
    return options
