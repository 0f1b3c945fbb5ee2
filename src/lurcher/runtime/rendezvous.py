"""How ranks find each other's sockets: through the store, each proving to the other that it belongs to the job."""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch.distributed import Store

from lurcher.errors import DeadlineExpired
from lurcher.runtime.backend import Patience

_TOKEN_BYTES = 8
_RANK_BYTES = 4


@dataclass
class Message:
    """One that has not come in full: its (sender, kind, number), its bytes, and the place of those that are still to come."""

    key: tuple[int, int, int]
    data: NDArray[np.uint8]
    left: memoryview


@dataclass
class Peer:
    """Another rank, its socket, what came of a message whose length is not known yet, or the message, and whether it has closed its end."""

    rank: int
    socket: socket.socket
    pending: bytearray = field(default_factory=bytearray)
    message: Message | None = None
    has_ended: bool = False


def meet(rank: int, peers: Collection[int], store: Store, patience: Patience) -> dict[int, Peer]:
    """A socket to every one of `peers`, which must name `rank` in turn: the lower rank of a pair listens, the other one connects.

    Raises DeadlineExpired with the ranks that did not come within `patience.connect_s`, and Interrupted.
    """
    found: dict[int, socket.socket] = {}
    deadline_s = time.monotonic() + patience.connect_s

    def wait(is_there: Callable[[], bool]) -> None:
        try:
            patience.wait(is_there, max(0.0, deadline_s - time.monotonic()), f"rank {rank} waited to connect")
        except DeadlineExpired:
            raise _late(rank, peers, found, patience) from None

    try:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with _listener(len(peers)) as listener:
            store.set(str(rank), f"{listener.getsockname()[1:].hex()} {token.hex()}")
            for lower in sorted(other for other in peers if other < rank):
                wait(lambda name=str(lower): store.check([name]))
                name, expected = store.get(str(lower)).decode().split()
                found[lower] = _connect(b"\0" + bytes.fromhex(name), patience.connect_s)
                found[lower].sendall(bytes.fromhex(expected) + rank.to_bytes(_RANK_BYTES, "big"))
            while len(found) < len(peers):
                wait(lambda: bool(select.select([listener], [], [], 0.0)[0]))
                _accept(listener, token, patience.connect_s, found)
    except BaseException as error:
        for peer in found.values():
            peer.close()
        if isinstance(error, TimeoutError):
            raise _late(rank, peers, found, patience) from None
        raise
    for peer in found.values():
        peer.setblocking(False)
    return {other: Peer(other, found[other]) for other in sorted(found)}


def _late(rank: int, peers: Collection[int], found: Collection[int], patience: Patience) -> DeadlineExpired:
    return DeadlineExpired(f"rank {rank} waited {patience.connect_s:g} s to connect to ranks {sorted(set(peers) - set(found))}")


def _accept(listener: socket.socket, token: bytes, timeout_s: float, found: dict[int, socket.socket]) -> None:
    """Let one connection in; one without the token is some other local process, and turned away."""
    peer, _ = listener.accept()
    peer.settimeout(timeout_s)
    hello = bytearray(_TOKEN_BYTES + _RANK_BYTES)
    received = 0
    while received < len(hello):
        count = peer.recv_into(memoryview(hello)[received:])
        if count == 0:
            break
        received += count
    if received == len(hello) and hello[:_TOKEN_BYTES] == token:
        found[int.from_bytes(hello[_TOKEN_BYTES:], "big")] = peer
    else:
        peer.close()


def _listener(num_peers: int) -> socket.socket:
    """Listening under a name that the kernel chooses, which goes with the socket: no port, no file."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")
    listener.listen(max(1, num_peers))
    return listener


def _connect(name: bytes, timeout_s: float) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout_s)
    peer.connect(name)
    return peer
