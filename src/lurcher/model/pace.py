"""Emulated device time: a rank's chunk is padded to the time a slower device would take.

Lets a laptop run eight ranks that behave like eight GPUs. It has its own functional form and its own noise, and nothing that
predicts, detects or plans may read it: they must learn from what they see (an import contract and a test hold this).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from lurcher.clock import Clock
from lurcher.config import PaceSection
from lurcher.faults import Fault, factor_at
from lurcher.records import Op

QUANTUM_NS = 4_000_000
"""Longest single sleep. One long sleep would hide a stopped or throttled process: its deadline passes while it is stopped."""
SLACK_NS = 1_000_000
"""What a quantum may overshoot and still count in full: ordinary timer delay. Beyond that only waiting for a core counts,
for a device needs none of the host's; what is left is time that the process was stopped or throttled, and the device lost."""
HOST_SCATTER_NS = 4_000_000
"""A collective inside a chunk counts as the device's work up to this: ranks that share a core arrive that much apart, devices would
not, and a device's chunk has its collectives in it. What is longer is somebody's real delay and comes on top."""
LAUNCH_S = 2e-4
"""Fixed cost of a chunk on the emulated device."""
_DRAWN_TOGETHER = 256
"""Normal numbers drawn at once: one alone costs as much as several calls of the real work."""


class Pace:
    """The emulated device of one rank: for each chunk `begin`, `finish` just before its last collective, and `end`."""

    def __init__(
        self, section: PaceSection, rank: int, seed: int, faults: Sequence[Fault], clock: Clock, run_delay_ns: Callable[[], int] = lambda: 0
    ) -> None:
        self._section = section
        self._faults = tuple(f for f in faults if f.kind in ("slow", "ramp", "flap") and f.where.kind == "rank" and rank in f.where.ranks)
        self._clock = clock
        self._run_delay_ns = run_delay_ns
        self._generator = np.random.default_rng([seed, rank])
        self._drawn: list[float] = []
        self._origin_ns = clock.now_ns()
        self._start_ns = 0
        self._start_cpu_ns = 0
        self._start_delay_ns = 0
        self._excluded_ns = 0
        self._absorbed_ns = 0
        self._iteration = 0
        self._usage: list[tuple[int, int]] = []
        self._open_target_ns = 0
        self._chunk_cpu_ns = 0
        self._drained_cpu_ns = time.process_time_ns()

    def begin(self) -> None:
        """A chunk's own work starts."""
        self._chunk_cpu_ns = time.process_time_ns()
        self._start_ns = self._clock.now_ns()
        self._start_cpu_ns = time.thread_time_ns()
        self._start_delay_ns = self._run_delay_ns()
        self._excluded_ns = 0
        self._absorbed_ns = 0

    def exclude_ns(self, duration_ns: int) -> None:
        """Time spent inside a collective of this chunk, before `finish`."""
        absorbed_ns = min(duration_ns, HOST_SCATTER_NS)
        self._absorbed_ns += absorbed_ns
        self._excluded_ns += duration_ns - absorbed_ns

    def exclude_link_ns(self, duration_ns: int) -> None:
        """Time of such a collective that an emulated link took: it comes on top of the device's."""
        self._excluded_ns += duration_ns

    def finish(self, phase: Op, iteration: int, layers: float, share: float, num_tokens: int, sum_len_sq: int) -> None:
        """Sleep until the chunk has lasted its emulated time. `share` is this rank's fraction of the stage's work."""
        self._iteration = iteration
        nominal_s = self._chunk_s(phase, layers, share, num_tokens, sum_len_sq)
        target_ns = round(nominal_s * self._factor() * 1e9)
        wall_ns = self._clock.now_ns() - self._start_ns - self._excluded_ns
        # A stop in the middle of the real work must cost time too, so wall time counts only as far as work or waiting for a core bear it out.
        worked_ns = time.thread_time_ns() - self._start_cpu_ns
        delay_ns = self._run_delay_ns()
        waited_ns = delay_ns - self._start_delay_ns
        real_ns = min(wall_ns, worked_ns + waited_ns + self._absorbed_ns + 2 * SLACK_NS)
        self._open_target_ns = target_ns
        self._sleep(target_ns - real_ns, delay_ns)

    def end(self) -> None:
        """The chunk is over: take down what CPU the whole process, with the transport's threads, has used for it."""
        self._usage.append((time.process_time_ns() - self._chunk_cpu_ns, self._open_target_ns))

    def pad(self, nominal_s: float) -> None:
        """Take as long as work of `nominal_s` on a healthy device takes here and now: for benchmarks between iterations."""
        scatter = 1.0 + self._section.noise * self._normal()
        self._sleep(round(nominal_s * scatter * self._factor() * 1e9), self._run_delay_ns())

    def drain_usage(self) -> list[tuple[int, int]]:
        """(real CPU ns, emulated ns) of every chunk since the last call, and (ns, 0) for all else that the process did: how honest
        the emulation is."""
        now_ns = time.process_time_ns()
        elsewhere_ns = now_ns - self._drained_cpu_ns - sum(cpu_ns for cpu_ns, _ in self._usage)
        usage, self._usage, self._drained_cpu_ns = [*self._usage, (elsewhere_ns, 0)], [], now_ns
        return usage

    def _chunk_s(self, phase: Op, layers: float, share: float, num_tokens: int, sum_len_sq: int) -> float:
        pairs = 0.5 * (sum_len_sq + num_tokens)
        layer_s: float = self._section.token_us * 1e-6 * num_tokens + self._section.pair_ns * 1e-9 * pairs**0.98
        ratio = self._section.backward_ratio if phase == Op.BACKWARD else 1.0
        scatter = math.exp(self._section.noise * self._normal())
        return LAUNCH_S + layers * share * ratio * layer_s * scatter

    def _normal(self) -> float:
        if not self._drawn:
            self._drawn = self._generator.standard_normal(_DRAWN_TOGETHER).tolist()
        return self._drawn.pop()

    def _factor(self) -> float:
        if not self._faults:
            return 1.0
        elapsed_s = (self._clock.now_ns() - self._origin_ns) * 1e-9
        factor = 1.0
        for fault in self._faults:
            factor *= factor_at(fault, self._iteration, elapsed_s)
        return factor

    def _sleep(self, duration_ns: int, delay_ns: int) -> None:
        """Let `duration_ns` of device time pass; `delay_ns` is what the process has waited for a core up to now."""
        left_ns = duration_ns
        while left_ns > 0:
            quantum_ns = min(left_ns, QUANTUM_NS)
            before_ns = self._clock.now_ns()
            self._clock.sleep_s(quantum_ns * 1e-9)
            spent_ns = self._clock.now_ns() - before_ns
            if spent_ns > quantum_ns + SLACK_NS:
                before_delay_ns, delay_ns = delay_ns, self._run_delay_ns()
                spent_ns = min(spent_ns, quantum_ns + SLACK_NS + delay_ns - before_delay_ns)
            left_ns -= spent_ns


class NoPace:
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

    def pad(self, nominal_s: float) -> None:
        """Nothing to do."""

    def drain_usage(self) -> list[tuple[int, int]]:
        """Nothing is emulated, so nothing is compared."""
        return []
