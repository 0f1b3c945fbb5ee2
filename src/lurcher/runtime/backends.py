"""The backends there are: local sockets beside gloo, or torch process groups for everything."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import torch
import torch.distributed
from torch.distributed import PrefixStore, Store

from lurcher.config import BackendName
from lurcher.errors import UserError
from lurcher.runtime.backend import Backend, Group, Link, Patience
from lurcher.runtime.gloo import GlooGroup, new_device
from lurcher.runtime.group_links import GroupLinks
from lurcher.runtime.handle import Handle, MakeProcessGroup, ProcessGroup
from lurcher.runtime.links import Links

CPU = torch.device("cpu")
WATCHDOG_FACTOR = 4.0
"""NCCL's own watchdog kills the process; it must never be faster than the supervisor, who knows which rank is at fault."""


class MakeGloo:
    """Makes gloo's groups; all that one of these makes share a device."""

    def __init__(self) -> None:
        self._device: object | None = None

    def fresh(self) -> MakeGloo:
        """Another one, with another device: after an abort gloo may not connect anything more on the same one."""
        return MakeGloo()

    def __call__(self, store: Store, index: int, size: int, connect_s: float, timeout_s: float) -> ProcessGroup:
        """Blocks until all are there, `connect_s` at most."""
        self._device = self._device or new_device()
        return GlooGroup(store, index, size, connect_s, timeout_s, self._device)


class GroupBackend:
    """Everything over the process groups that `make` makes, which take tensors on `device`."""

    def __init__(self, make: MakeProcessGroup, device: torch.device = CPU) -> None:
        self._make, self._device = make, device

    def fresh(self) -> GroupBackend:
        """The same, with nothing in common."""
        return GroupBackend(self._make.fresh(), self._device)

    def group(self, ranks: tuple[int, ...], rank: int, store: Store, patience: Patience) -> Group:
        """A process group."""
        return self._handle(ranks, rank, store, patience)

    def links(self, rank: int, peers: Collection[int], together: tuple[int, ...], store: Store, patience: Patience) -> Link:
        """A process group for each direction of a pair, and one for the ranks that gather."""
        return GroupLinks(rank, peers, together, lambda ranks, name: self._handle(ranks, rank, PrefixStore(name, store), patience))

    def _handle(self, ranks: tuple[int, ...], rank: int, store: Store, patience: Patience) -> Handle:
        return Handle(ranks, rank, self._make, store, self._device, patience)


class LocalBackend(GroupBackend):
    """Ranks of one host: sockets for what is small and frequent (see `links.py`), gloo for the sums over owners."""

    def __init__(self) -> None:
        super().__init__(MakeGloo())

    def fresh(self) -> LocalBackend:
        """The same, with nothing in common."""
        return LocalBackend()

    def links(self, rank: int, peers: Collection[int], together: tuple[int, ...], store: Store, patience: Patience) -> Link:
        """Local sockets; whoever is linked can gather."""
        return Links(rank, peers, store, patience.timeout_s, patience.connect_s, patience.interrupted)


def backend_named(name: BackendName, rank: int) -> Backend:
    """The backend that the job file names, for `rank`; for NCCL with the rank's GPU, and UserError without one."""
    if name == "local":
        return LocalBackend()
    if name == "gloo":
        return GroupBackend(MakeGloo())
    check_nccl(num_ranks=1)
    return GroupBackend(_MakeNccl(), torch.device("cuda", rank % torch.cuda.device_count()))


def check_nccl(num_ranks: int) -> None:
    """Raise UserError unless this machine can run so many ranks on NCCL."""
    if not torch.distributed.is_nccl_available():
        raise UserError(
            'run.backend is "nccl", but this PyTorch was built without NCCL; install one with CUDA, or set run.backend to "local" or "gloo"'
        )
    num_devices = torch.cuda.device_count()
    if num_devices < num_ranks:
        raise UserError(
            f'run.backend is "nccl" for {num_ranks} ranks, and PyTorch sees {num_devices} GPUs; NCCL needs one a rank:'
            ' make the layout smaller, or set run.backend to "local" or "gloo"'
        )


class _Nccl:
    """torch's NCCL group under the names that the runtime uses."""

    def __init__(self, group: torch.distributed.ProcessGroupNCCL) -> None:
        self._group = group
        self.allreduce, self.allgather, self.abort = group.allreduce, group.allgather, group.abort

    def broadcast(self, tensors: list[torch.Tensor], root: int) -> torch.distributed.Work:
        """The tensor of index `root` to all."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast(tensors, options)


class _MakeNccl:
    """Makes NCCL's groups, which have nothing in common."""

    def fresh(self) -> _MakeNccl:
        """Itself."""
        return self

    def __call__(self, store: Store, index: int, size: int, connect_s: float, timeout_s: float) -> ProcessGroup:
        """Returns at once; the first call connects. NCCL cannot be told when to give connecting up: `connect_s` is the waiter's alone."""
        options = torch.distributed.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=WATCHDOG_FACTOR * max(connect_s, timeout_s))
        return _Nccl(torch.distributed.ProcessGroupNCCL(store, index, size, options))
