"""Links over torch process groups: messages go through a group of two for each direction of a pair, and a stage gathers in a group of its own.

Calls of one group are carried out one after the other, and on NCCL each waits for its counterpart. Two ranks that send to each other
through one group would wait for ever; through two they pass. A process group knows neither tags nor sizes, so a message is two calls:
who it is (kind, number, bytes), then the bytes; the receiver keeps what it does not want yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import torch

from lurcher.errors import LurcherError
from lurcher.runtime.backend import sum_of_parts
from lurcher.runtime.handle import Call, Handle

OpenGroup = Callable[[tuple[int, ...], str], Handle]
"""Makes a group of ranks, which meet under a name."""


class GroupLinks:
    """`rank`'s groups with each of `peers`, in both directions, and with the ranks `together` that it gathers with."""

    def __init__(self, rank: int, peers: Collection[int], together: tuple[int, ...], open_group: OpenGroup) -> None:
        self._rank, self._together = rank, together
        self._meeting: Handle | None = None
        self._to: dict[int, Handle] = {}
        self._from: dict[int, Handle] = {}
        self._under_way: deque[Call] = deque()
        self._arrived: dict[tuple[int, int, int], torch.Tensor] = {}  # bytes by sender, kind and number
        self._is_open = True
        try:
            # In one order on all ranks: whoever has the least group left to make then finds its other end at the same one.
            for source, target in sorted(pair for peer in peers for pair in ((rank, peer), (peer, rank))):
                handles, peer = (self._to, target) if source == rank else (self._from, source)
                handles[peer] = open_group((source, target), f"{source}-{target}")
            if len(together) > 1:
                self._meeting = open_group(together, "-".join(map(str, together)) + " together")
        except BaseException:
            self.close()
            raise

    def send(self, rank: int, kind: int, seq: int, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor; it may be changed once this returns. Never waits."""
        handle = self._peer(self._to, rank)
        while self._under_way and self._under_way[0].is_completed():
            self._under_way.popleft().wait()
        data = tensor.clone().view(-1).view(torch.uint8)
        for part in (torch.tensor([kind, seq, data.numel()]), data) if data.numel() else (torch.tensor([kind, seq, 0]),):
            self._under_way.append(handle.start_broadcast(part, self._rank))

    def receive(self, rank: int, kind: int, seq: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor that `rank` sent under that number, with the shape and dtype of `like`; waits until it is there."""
        handle = self._peer(self._from, rank)
        while (rank, kind, seq) not in self._arrived:
            header = torch.zeros(3, dtype=torch.int64)
            handle.start_broadcast(header, rank).wait()
            found_kind, found_seq, num_bytes = header.tolist()
            data = torch.empty(num_bytes, dtype=torch.uint8)
            if num_bytes:
                handle.start_broadcast(data, rank).wait()
            self._arrived[rank, found_kind, found_seq] = data
        return self._arrived.pop((rank, kind, seq)).view(like.dtype).view(like.shape)

    def gather(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> list[torch.Tensor]:
        """The contiguous tensors of `ranks`, in that order; this rank's own is `tensor` itself."""
        if self._meeting is None or ranks != self._together:
            raise LurcherError(f"rank {self._rank} gathers with ranks {self._together}, not with {ranks}")
        return self._meeting.all_gather(tensor)

    def sum_in_place(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Add up the contiguous tensors of `ranks`, this one among them, in that order: the same bits everywhere."""
        sum_of_parts(self.gather(ranks, tensor), tensor)

    def complete(self) -> None:
        """Wait until everything that was sent has left this rank."""
        while self._under_way:
            self._under_way.popleft().wait()

    def close(self) -> None:
        """Abort and drop every group."""
        self._is_open = False
        for handle in (*self._to.values(), *self._from.values(), *(() if self._meeting is None else (self._meeting,))):
            handle.close()
        self._under_way.clear()
        self._arrived.clear()

    def _peer(self, handles: dict[int, Handle], rank: int) -> Handle:
        if not self._is_open:
            raise LurcherError(f"the links of rank {self._rank} were closed with their generation")
        return handles[rank]
