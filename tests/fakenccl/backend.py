"""The runtime on FakeNccl: a backend, and a rank's process that uses it."""

from __future__ import annotations

from collections.abc import MutableSequence
from multiprocessing.connection import Connection

from tests.fakenccl.group import MakeFakeNccl

from lurcher.runtime.backends import GroupBackend
from lurcher.runtime.worker import rank_main


def fake_backend(watchdog_s: float | None = None) -> GroupBackend:
    """Everything over groups with NCCL's manners."""
    return GroupBackend(MakeFakeNccl(watchdog_s))


def fake_rank_main(spec_bytes: bytes, conn: Connection, progress: MutableSequence[int]) -> None:
    """`rank_main` on FakeNccl, for `Supervisor(rank_main=...)`."""
    rank_main(spec_bytes, conn, progress, fake_backend())
