"""Sums inside a stage over plain loopback sockets: no thread, one wake-up a call.

A stage's ranks share a host and sum small tensors some ten times a chunk. gloo hands every such sum through two more threads,
which cost 0.2 to 0.6 ms of CPU a call where 16 KiB over a socket cost 0.02 to 0.04 (8 ranks on 2 cores): too much to emulate
devices honestly. The store only tells the ports; a peer that dies closes its socket, and the wait ends at once.
"""

from __future__ import annotations

import secrets
import socket

import torch
from torch.distributed import Store

from lurcher.errors import DeadlineExpired, LurcherError

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16
"""Sent before the peer's part is read. Two of them fit a loopback socket's buffers, so ranks that all send first never block each other."""
_TOKEN_BYTES = 8


class DirectGroup:
    """`ranks` as seen by `rank`; every pair has a socket. All waits end after `timeout_s` with DeadlineExpired."""

    def __init__(self, ranks: tuple[int, ...], rank: int, store: Store, timeout_s: float) -> None:
        self._ranks, self._rank, self._timeout_s = ranks, rank, timeout_s
        self._peers = _meet(ranks, rank, store, timeout_s)

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """Add up the ranks' contiguous tensors in the order of the ranks: the same bits everywhere."""
        if not self._peers:
            raise LurcherError(f"the group of ranks {self._ranks} was closed with its generation")
        parts = {rank: torch.empty_like(tensor) for rank in self._peers}
        own = _bytes_of(tensor)
        others = {rank: _bytes_of(part) for rank, part in parts.items()}
        for first in range(0, len(own), CHUNK_BYTES):
            piece = slice(first, first + CHUNK_BYTES)
            for rank, peer in self._peers.items():
                self._send(rank, peer, own[piece])
            for rank, peer in self._peers.items():
                self._receive(rank, peer, others[rank][piece])
        if len(parts) == 1:
            tensor.add_(parts.popitem()[1])  # of two, either order gives the same bits
            return
        ordered = [tensor if rank == self._rank else parts[rank] for rank in self._ranks]
        total = ordered[0].clone()
        for part in ordered[1:]:
            total.add_(part)
        tensor.copy_(total)

    def close(self) -> None:
        """Close every socket; peers that still wait are told at once."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def _send(self, rank: int, peer: socket.socket, data: memoryview) -> None:
        try:
            peer.sendall(data)
        except TimeoutError:
            raise DeadlineExpired(f"rank {self._rank} could not send to rank {rank} of its stage for {self._timeout_s:g} s") from None

    def _receive(self, rank: int, peer: socket.socket, data: memoryview) -> None:
        try:
            if not _fill(peer, data):
                raise ConnectionResetError(f"rank {rank} closed its connection to rank {self._rank}: it has ended")
        except TimeoutError:
            raise DeadlineExpired(f"rank {self._rank} waited {self._timeout_s:g} s for rank {rank} of its stage") from None


def _meet(ranks: tuple[int, ...], rank: int, store: Store, timeout_s: float) -> dict[int, socket.socket]:
    """A socket to every other rank: the earlier one of a pair listens, the later one connects and proves itself with a token."""
    index = ranks.index(rank)
    peers: dict[int, socket.socket] = {}
    try:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with socket.create_server((LOOPBACK, 0), backlog=len(ranks)) as listener:
            listener.settimeout(timeout_s)
            store.set(str(rank), f"{listener.getsockname()[1]} {token.hex()}")
            for earlier in ranks[:index]:
                port, expected = store.get(str(earlier)).decode().split()
                peers[earlier] = socket.create_connection((LOOPBACK, int(port)), timeout=timeout_s)
                peers[earlier].sendall(bytes.fromhex(expected) + index.to_bytes(4, "big"))
            while len(peers) < len(ranks) - 1:
                peer, _ = listener.accept()
                peer.settimeout(timeout_s)
                hello = bytearray(_TOKEN_BYTES + 4)
                if not _fill(peer, memoryview(hello)) or hello[:_TOKEN_BYTES] != token:
                    peer.close()  # some other local process; ours is still to come
                    continue
                peers[ranks[int.from_bytes(hello[_TOKEN_BYTES:], "big")]] = peer
    except TimeoutError:
        missing = sorted(set(ranks) - set(peers) - {rank})
        raise DeadlineExpired(f"rank {rank} waited {timeout_s:g} s to connect to ranks {missing} of its stage") from None
    for peer in peers.values():
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dict(sorted(peers.items()))


def _fill(peer: socket.socket, data: memoryview) -> bool:
    """Receive until `data` is full; False if the other end closed before."""
    received = 0
    while received < len(data):
        count = peer.recv_into(data[received:])
        if count == 0:
            return False
        received += count
    return True


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.numpy()).cast("B")
