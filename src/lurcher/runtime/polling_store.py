"""A store whose waits can be given up, for constructors that wait in it for their peers and would otherwise hold it.

A TCPStore has one connection, locked as long as a call waits on it, so a thread that waits for the dead would hold up its whole process.
A second connection is no way out: for each, torch looks its own address up in the DNS, in the process and in the store's only thread, where
a slow answer holds up every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store

POLL_S = 1e-3


class PollingStore(Store):
    """`store` with waits that ask again and again, end after `timeout_s` with TimeoutError, and at once when it `is_over`."""

    def __init__(self, store: Store, timeout_s: float, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._store, self._timeout_s, self._is_over = store, timeout_s, is_over

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """The value, once it is there."""
        self.wait([key])
        return self._store.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return self._store.check(list(keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its value."""
        return self._store.add(key, amount)

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return self._store.delete_key(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once all keys are there."""
        timeout_s = self._timeout_s if timeout is None else min(self._timeout_s, timeout.total_seconds())
        deadline_s = time.monotonic() + timeout_s
        while not self.check(keys):
            if self._is_over() or time.monotonic() > deadline_s:
                raise TimeoutError(f"waited for {', '.join(keys)} in the store, at most {timeout_s:g} s")
            time.sleep(POLL_S)
