"""How long the kernel kept this thread waiting for a core. Linux only; elsewhere it is unknown, and told as 0."""

from __future__ import annotations

import os


class RunDelay:
    """Reads the calling thread's total run-queue wait, in ns, a few microseconds a call. Not the time it slept or was stopped."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def __call__(self) -> int:
        """Nanoseconds runnable without running, since the thread began; 0 where the kernel does not tell."""
        if self._fd < 0:
            return 0
        # Fields: time on a core, time waiting for one, number of time slices.
        return int(os.pread(self._fd, 128, 0).split()[1])

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
