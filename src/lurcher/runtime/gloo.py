"""gloo's process group, as one that can be aborted: gloo itself has no way to end a call before its timeout.

A group that is dropped while a call waits for a peer blocks in its destructor until that call times out, which may be minutes; and
its peers, if they wait for this rank, wait as long. Shutting down the connections from outside ends the call at both ends within a
millisecond. They are found as the sockets that this process has got while the group was made, so a process must make one group at a
time, as a rank does; a group whose making was given up, and which came late, is only dropped.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import AllreduceOptions, BroadcastOptions, ProcessGroupGloo, Store, Work
from torch.distributed.distributed_c10d import AllgatherOptions

LOOPBACK_INTERFACE = "lo"


class GlooGroup:
    """Rank number `index` of `size`, meeting the others in `store`; connecting ends after `connect_s`, and a call after `timeout_s`, with RuntimeError."""

    def __init__(self, store: Store, index: int, size: int, connect_s: float, timeout_s: float, device: object | None = None) -> None:
        device = device or new_device()
        before = _sockets()
        self._group: ProcessGroupGloo | None = ProcessGroupGloo(store, index, size, _options(connect_s, device))
        # Copies, so that a number which gloo gives back and somebody else gets is never shut down by mistake.
        self._sockets = [socket.socket(fileno=os.dup(number)) for name, number in _sockets().items() if name not in before]
        self._timeout = timedelta(seconds=timeout_s)

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Start summing in place."""
        options = AllreduceOptions()
        options.timeout = self._timeout
        return self._open().allreduce(tensors, options)

    def allgather(self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Work:
        """Start collecting everybody's tensor into `outputs[0]`, by index."""
        options = AllgatherOptions()
        options.timeout = self._timeout
        return self._open().allgather(outputs, tensors, options)

    def broadcast(self, tensors: list[torch.Tensor], root: int) -> Work:
        """Start copying the tensor of index `root` to all."""
        options = BroadcastOptions()
        options.timeout, options.rootRank, options.rootTensor = self._timeout, root, 0
        return self._open().broadcast(tensors, options)

    def abort(self) -> None:
        """End every call under way, here and at the peers, and let the group go."""
        for connection in self._sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the peer was first
            connection.close()
        self._sockets = []
        self._group = None

    def _open(self) -> ProcessGroupGloo:
        if self._group is None:
            raise RuntimeError("the group was aborted")
        return self._group


def new_device() -> object:
    """A device of gloo. Groups of a rank share one, for each is a thread that polls."""
    return ProcessGroupGloo.create_device(interface=LOOPBACK_INTERFACE)


def _options(timeout_s: float, device: object) -> ProcessGroupGloo._Options:
    """One worker thread a group does, for calls come one by one."""
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    options._devices = [device]
    return options


def _sockets() -> dict[str, int]:
    """Numbers of this process's sockets by the kernel's names. A number may mean another one a moment later, where an old group's is just being closed."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = entry.readlink().name
        except OSError:
            continue  # it was the one that this very loop reads from
        if name.startswith("socket:"):
            found[name] = int(entry.name)
    return found
