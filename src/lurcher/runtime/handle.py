"""One torch process group as its users see it: ranks are the job's, every wait is `Patience.wait`, and tensors may lie anywhere.

A group that somebody still refers to keeps its connections open. So nobody else holds the process group: users hold a Handle, which is
emptied when it is closed.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import torch
from torch.distributed import Store, Work

from lurcher.errors import LurcherError
from lurcher.runtime.backend import Patience
from lurcher.runtime.polling_store import PollingStore


class ProcessGroup(Protocol):
    """The calls of a process group that the runtime uses. Each may return at enqueue, and may never complete if a peer is dead."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Sum in place."""
        ...

    def allgather(self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Work:
        """Everybody's tensor into `outputs[0]`, by index."""
        ...

    def broadcast(self, tensors: list[torch.Tensor], root: int) -> Work:
        """The tensor of index `root` to all."""
        ...

    def abort(self) -> None:
        """End whatever is under way, from any thread."""
        ...


class MakeProcessGroup(Protocol):
    """Makes the process group of rank number `index` of `size`, which meet in `store`. May block until all are there, or for ever."""

    def fresh(self) -> MakeProcessGroup:
        """One whose groups share nothing with those of this one."""
        ...

    def __call__(self, store: Store, index: int, size: int, connect_s: float, timeout_s: float) -> ProcessGroup:
        """Connecting ends after `connect_s` and a call after `timeout_s`, where the kind of group can end them at all."""
        ...


class Handle:
    """The group of `ranks`. The constructor returns once all of them are connected; `device` is where the process group wants its tensors."""

    def __init__(self, ranks: tuple[int, ...], rank: int, make: MakeProcessGroup, store: Store, device: torch.device, patience: Patience) -> None:
        self.ranks = ranks
        self._rank, self._device, self._patience = rank, device, patience
        self._group: ProcessGroup | None = _opened(ranks, rank, make, store, device, patience)

    def all_reduce(self, tensor: torch.Tensor) -> Call:
        """Start summing `tensor` in place over the group."""
        placed = tensor.to(self._device)
        return Call(self, self._open().allreduce([placed]), tensor, placed)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, in the group's order; this rank's own is `tensor` itself. Waits for them."""
        placed = tensor.to(self._device)
        parts = [torch.empty_like(placed) for _ in self.ranks]
        self.finish(self._open().allgather([parts], [placed]))
        return [tensor if rank == self._rank else part.to(tensor.device) for rank, part in zip(self.ranks, parts, strict=True)]

    def start_broadcast(self, tensor: torch.Tensor, source: int) -> Call:
        """Start copying the tensor of rank `source` to all others, in place."""
        placed = tensor.to(self._device)
        return Call(self, self._open().broadcast([placed], self.ranks.index(source)), tensor, placed)

    def finish(self, work: Work) -> None:
        """Wait until `work` is complete, and raise what it ended with. `work.wait()` may block, or not wait at all: it is called when all is done."""
        self._patience.wait(work.is_completed, self._patience.timeout_s, f"rank {self._rank} waited for its group {self.ranks}")
        self._open()  # what was aborted is complete, too, and must not be used
        work.wait()

    def close(self) -> None:
        """Abort what is under way, and let the process group go."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _open(self) -> ProcessGroup:
        if self._group is None:
            raise LurcherError(f"the group of ranks {self.ranks} was closed with its generation")
        return self._group


class Call:
    """A call that was started: `tensor` takes part in it as `placed`, a copy on the group's device where it does not lie there itself."""

    def __init__(self, handle: Handle, work: Work, tensor: torch.Tensor, placed: torch.Tensor) -> None:
        self._handle, self._work, self._tensor, self._placed = handle, work, tensor, placed

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._work.is_completed()

    def wait(self) -> None:
        """Return once the call is complete and its result is in the tensor."""
        self._handle.finish(self._work)
        if self._placed is not self._tensor:
            self._tensor.copy_(self._placed)


class _Opening(threading.Thread):
    """Makes a process group and its first call, which is where NCCL connects. Either may block for ever, so a thread of its own does it."""

    def __init__(self, make: MakeProcessGroup, store: Store, index: int, size: int, device: torch.device, patience: Patience) -> None:
        super().__init__(daemon=True)
        self._make, self._store, self._place = make, store, (index, size)
        self._device, self._patience = device, patience
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.group: ProcessGroup | None = None
        self.first: Work | None = None
        self.error: Exception | None = None
        self.has_ended = False

    def run(self) -> None:
        try:
            store = PollingStore(self._store, self._patience.connect_s, lambda: self._is_abandoned)
            group = self._make(store, *self._place, self._patience.connect_s, self._patience.timeout_s)
            with self._lock:
                if self._is_abandoned:
                    return  # dropped, not aborted: nothing is under way in it, and what gloo's abort shuts down may be the next group's by now
                self.group = group
            self.first = group.allreduce([torch.zeros(1, device=self._device)])
        except (RuntimeError, OSError) as error:
            self.error = error
        finally:
            self.has_ended = True

    def is_done(self) -> bool:
        """Whether the group is usable, or never will be."""
        return self.has_ended and (self.first is None or self.first.is_completed())

    def abandon(self) -> None:
        """Nobody needs the group any more, now or when it is made in the end."""
        with self._lock:
            self._is_abandoned = True
            if self.group is not None:
                self.group.abort()


def _opened(ranks: tuple[int, ...], rank: int, make: MakeProcessGroup, store: Store, device: torch.device, patience: Patience) -> ProcessGroup:
    """The group, connected. All meet in the store first: a wait there can be given up, and few are then left that only an abort would end."""
    index, what, begin_s = ranks.index(rank), f"rank {rank} waited to connect to its group {ranks}", time.monotonic()
    names = [f"here/{number}" for number in range(len(ranks))]
    store.set(names[index], "")
    patience.wait(lambda: store.check(names), patience.connect_s, what)
    opening = _Opening(make, store, index, len(ranks), device, patience)
    opening.start()
    try:
        patience.wait(opening.is_done, max(0.0, patience.connect_s - (time.monotonic() - begin_s)), what)
        if opening.error is not None:
            raise opening.error
        assert opening.group is not None and opening.first is not None  # there was no error
        opening.first.wait()
    except BaseException:
        opening.abandon()
        raise
    return opening.group
