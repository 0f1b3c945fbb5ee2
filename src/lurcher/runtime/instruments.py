"""What the engine tells the outside while it works: events, heartbeats, and the hooks of emulated device and links."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.wires import NoWires, Wires

GENERATION_CALLS = 1 << 32
"""Call numbers that a generation has to itself: more than a group ever makes calls in one."""


class Device(Protocol):
    """The device that a rank's chunks run on: `begin`, then `finish` once, just before the chunk's last tensor collective, and `end`."""

    def begin(self) -> None:
        """A chunk's own work starts; its input is there."""
        ...

    def exclude_ns(self, duration_ns: int) -> None:
        """Time spent inside a tensor collective of this chunk, before `finish`."""
        ...

    def exclude_link_ns(self, duration_ns: int) -> None:
        """The part of such time that a link took, which is none of the device's."""
        ...

    def finish(self, phase: Op, iteration: int, layers: float, share: float, num_tokens: int, sum_len_sq: int) -> None:
        """The chunk's own work is done; may wait until it has lasted as long as the device would take."""
        ...

    def end(self) -> None:
        """The chunk is over, its last collective too."""
        ...


class NullDevice:
    """A device that takes the time it really takes."""

    def begin(self) -> None:
        """Nothing to do."""

    def exclude_ns(self, duration_ns: int) -> None:
        """Nothing to do."""

    def exclude_link_ns(self, duration_ns: int) -> None:
        """Nothing to do."""

    def finish(self, phase: Op, iteration: int, layers: float, share: float, num_tokens: int, sum_len_sq: int) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""


class Instruments:
    """Recorder, device, wires and progress of one rank, with the iteration and chunk it is in and its call numbers per group."""

    def __init__(self, recorder: Recorder, device: Device, progress: Callable[[int, int], None], wires: Wires | None = None) -> None:
        self.record = recorder.record
        self.device = device
        self.wires: Wires = wires or NoWires()
        self._progress = progress
        self._next_seq: dict[int, int] = {}
        self._first_seq = 0
        self.iteration = 0
        self.num_chunks = 0

    def begin_generation(self, generation: int) -> None:
        """Calls are numbered from a new beginning, the same on all ranks: they would differ after an iteration that broke off, or where a rank joins."""
        self._next_seq.clear()
        self._first_seq = generation * GENERATION_CALLS

    def begin_iteration(self, iteration: int) -> None:
        """Chunks count from 0 again."""
        self.iteration = iteration
        self.num_chunks = 0
        self.beat()

    def begin_chunk(self) -> None:
        """One more chunk of this iteration starts."""
        self.num_chunks += 1
        self.beat()

    def beat(self) -> None:
        """A sign of progress: at every chunk's start and before everything that may block."""
        self._progress(self.iteration, self.num_chunks)

    def next_seq(self, group: int, count: int = 1) -> int:
        """The number of the group's next call; `count` numbers are used up, on every rank of the group alike."""
        seq = self._next_seq.get(group, self._first_seq)
        self._next_seq[group] = seq + count
        return seq

    def own_work(self, op: Op, seq: int, start_ns: int) -> None:
        """Record a piece of the rank's own work that ends now."""
        self.record(op, -1, seq, -1, 0, 0, start_ns, time.monotonic_ns())
