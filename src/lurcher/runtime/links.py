"""What a rank exchanges with single other ranks: the sums of its stage, and what passes between stages. Local sockets, no thread.

Ranks of a generation share a host and exchange small tensors some ten times a chunk. gloo hands every one through more threads,
which cost 0.2 to 0.6 ms of CPU a call where a socket costs 0.05 (8 ranks on 2 cores): too much to emulate
devices honestly. The store only tells the names; a peer that dies closes its socket, and every wait ends at once.

Whoever waits, to send or to receive, takes in whatever arrives from anybody. So a rank that sends more than a socket's buffers
hold gets through as soon as its peer waits for anything, and ranks that all send first never block each other.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import Store

from lurcher.errors import DeadlineExpired, LurcherError
from lurcher.runtime.backend import LISTEN_S, Interrupted, Patience, never, sum_of_parts
from lurcher.runtime.rendezvous import Message, Peer, meet

MEETING, HOP = 0, 1
"""Kinds of messages; each has its own numbers."""
RECEIVE_BYTES = 1 << 16
"""Taken from a socket at once. Below the size from which a fresh buffer costs page faults."""
_HEADER = struct.Struct("<BQQ")


class Links:
    """`rank`'s sockets to `peers`, one each.

    All waits end after `timeout_s` with DeadlineExpired, those for a connection after `connect_s`; and with Interrupted once `interrupted()`.
    """

    def __init__(
        self, rank: int, peers: Collection[int], store: Store, timeout_s: float, connect_s: float, interrupted: Callable[[], bool] = never
    ) -> None:
        self._rank, self._timeout_s, self._interrupted = rank, timeout_s, interrupted
        self._peers = meet(rank, peers, store, Patience(timeout_s, connect_s, interrupted))
        self._by_fd = {peer.socket.fileno(): peer for peer in self._peers.values()}
        self._poll = select.poll()
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)
        self._arrived: dict[tuple[int, int, int], bytearray | NDArray[np.uint8]] = {}  # by sender, kind and number
        self._num_meetings: dict[tuple[int, ...], int] = {}
        self._scratch = memoryview(bytearray(RECEIVE_BYTES))

    def send(self, rank: int, kind: int, seq: int, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor; it may be changed once this returns."""
        peer = self._peer(rank)
        data = memoryview(tensor.numpy()).cast("B")
        parts = (_HEADER.pack(kind, seq, len(data)), data)
        try:
            sent = peer.socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError:
            raise self._ended(rank) from None
        if sent < _HEADER.size:
            self._send_rest(peer, b"".join(parts)[sent:])
        elif sent < _HEADER.size + len(data):
            self._send_rest(peer, data[sent - _HEADER.size :])

    def receive(self, rank: int, kind: int, seq: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor that `rank` sent under that number, with the shape and dtype of `like`; waits until it is there."""
        peer, key = self._peer(rank), (rank, kind, seq)
        data = self._arrived.pop(key, None)
        if data is None:
            deadline_s = time.monotonic() + self._timeout_s
            while data is None:
                if peer.has_ended:
                    raise self._ended(rank)
                self._take_in(deadline_s, rank, "waited for")
                data = self._arrived.pop(key, None)
        return torch.frombuffer(data, dtype=like.dtype).view(like.shape)

    def sum_in_place(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Add up the contiguous tensors of `ranks`, this one among them, in that order: the same bits everywhere."""
        sum_of_parts(self.gather(ranks, tensor), tensor)

    def gather(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> list[torch.Tensor]:
        """The contiguous tensors of `ranks`, in that order; this rank's own is `tensor` itself."""
        seq = self._num_meetings.get(ranks, 0)
        self._num_meetings[ranks] = seq + 1
        for rank in ranks:
            if rank != self._rank:
                self.send(rank, MEETING, seq, tensor)
        return [tensor if rank == self._rank else self.receive(rank, MEETING, seq, tensor) for rank in ranks]

    def complete(self) -> None:
        """What was sent is in the sockets already, and a peer gets it whatever becomes of this rank."""

    def close(self) -> None:
        """Close every socket; peers that still wait are told at once."""
        for peer in self._peers.values():
            peer.socket.close()
        self._peers, self._by_fd = {}, {}

    def _peer(self, rank: int) -> Peer:
        if not self._peers:
            raise LurcherError(f"the links of rank {self._rank} were closed with their generation")
        return self._peers[rank]

    def _send_rest(self, peer: Peer, data: bytes | memoryview) -> None:
        """Send what the socket's buffer did not take at once; meanwhile take in what others send."""
        fd = peer.socket.fileno()
        left = memoryview(data)
        deadline_s = time.monotonic() + self._timeout_s
        self._poll.modify(fd, select.POLLIN | select.POLLOUT)
        try:
            while left:
                self._take_in(deadline_s, peer.rank, "could not send to")
                try:
                    left = left[peer.socket.send(left) :]
                except BlockingIOError:
                    pass  # it was somebody else's message that ended the wait
                except OSError:
                    raise self._ended(peer.rank) from None
        finally:
            if not peer.has_ended:
                self._poll.modify(fd, select.POLLIN)

    def _take_in(self, deadline_s: float, rank: int, doing: str) -> None:
        """Wait until any socket has something, and take it. `rank` and `doing` are what it is for, should it never come."""
        while not (ready := self._poll.poll(1e3 * LISTEN_S)):
            if self._interrupted():
                raise Interrupted(f"rank {self._rank} {doing} rank {rank} until the supervisor interrupted")
            if time.monotonic() > deadline_s:
                raise DeadlineExpired(f"rank {self._rank} {doing} rank {rank} for {self._timeout_s:g} s")
        for fd, what in ready:
            if what != select.POLLOUT:
                self._take_from(self._by_fd[fd])

    def _take_from(self, peer: Peer) -> None:
        """What has come of the message that is under way, or the beginning of the next."""
        room = self._scratch if peer.message is None else peer.message.left
        try:
            count = peer.socket.recv_into(room)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if count == 0:
            # Who ended well is missed by nobody; only whoever still wants something of it has to know.
            peer.has_ended = True
            self._poll.unregister(peer.socket.fileno())
        elif peer.message is None:
            self._split(peer, room[:count])
        elif count < len(room):
            peer.message.left = room[count:]
        else:
            self._arrived[peer.message.key] = peer.message.data
            peer.message = None

    def _split(self, peer: Peer, came: memoryview) -> None:
        """Messages, and the beginning of one that the next bytes belong to: into a place of its full length, so that these need no further copy."""
        if peer.pending:
            came = memoryview(peer.pending + came)
            peer.pending.clear()
        while len(came) >= _HEADER.size:
            kind, seq, num_bytes = _HEADER.unpack_from(came)
            key, came = (peer.rank, kind, seq), came[_HEADER.size :]
            if len(came) < num_bytes:
                data = np.empty(num_bytes, np.uint8)
                data[: len(came)] = came
                peer.message = Message(key, data, memoryview(data)[len(came) :])
                return
            self._arrived[key] = bytearray(came[:num_bytes])
            came = came[num_bytes:]
        peer.pending += came

    def _ended(self, rank: int) -> ConnectionResetError:
        return ConnectionResetError(f"rank {rank} closed its connection to rank {self._rank}: it has ended")
