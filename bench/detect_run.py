"""Runs detectors over the series of detect_series.py: alarms on healthy ones, delays on slow ones, time per point."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from detect_series import NOISE, WITH_WORK, Fault, Floats, Shape, generator, healthy, slowdown_of, work_of
from lurcher.detect.bocd import Bocd, greyhound
from lurcher.detect.cusum import Cusum
from lurcher.detect.default import DefaultDetector
from lurcher.detect.protocol import Detector
from lurcher.detect.residual import WorkloadResidual
from lurcher.detect.window import SlidingWindow

Make = Callable[[], Detector]

DETECTORS: Mapping[str, Make] = {
    "default": DefaultDetector,
    "sliding window": SlidingWindow,
    "CUSUM": Cusum,
    "BOCD": Bocd,
    "BOCD + verification": greyhound,
}
BAYESIAN = ("BOCD", "BOCD + verification")
"""Ten times dearer per point than the others, and judged on fewer healthy iterations."""

SLOWDOWNS = (1.05, 1.08, 1.10, 1.20, 1.50)
DURATIONS = (20, 50, 200, 2000)
SHAPES: tuple[Shape, ...] = ("step", "ramp")
ONSET = 600
"""Healthy iterations before a fault, but for the table of short baselines."""
TRACE = 20_000
"""Length of a healthy trace in the count of false alarms; half as many points again come in traces of SHORT_TRACE."""
SHORT_TRACE = 300


class Silence(NamedTuple):
    """Alarms of a detector on healthy iterations of one noise class."""

    num_iterations: int
    num_alarms: int


class Delays(NamedTuple):
    """Iterations from onset to confirmation of each trace; infinite where there was none. Early: alarms before the onset, left out."""

    delays: Floats
    num_early: int

    def within(self, duration: int) -> Floats:
        """Those found while a fault of this duration lasts. No detector looks ahead, so a shorter fault is the same trace, cut."""
        return self.delays[self.delays < duration]


def false_alarms(make: Make, noise: str, seed: int, num_iterations: int) -> Iterator[Silence]:
    """Count confirmed slowdowns on healthy traces, two thirds of the points long and one third short ones; a running total after each trace.

    After an alarm the detector begins anew, so that one mistake is one alarm.
    """
    seen, alarms, number = 0, 0, 0
    while seen < num_iterations:
        length = min(TRACE, num_iterations - seen)
        series = healthy(seed, noise, number, length)
        pieces = [series] if number % 3 else [series[i : i + SHORT_TRACE] for i in range(0, length, SHORT_TRACE)]
        for piece in pieces:
            alarms += _alarms(make(), piece)
        seen, number = seen + length, number + 1
        yield Silence(seen, alarms)


def _alarms(detector: Detector, series: Floats) -> int:
    alarms = 0
    for iteration, value in enumerate(series.tolist()):
        change = detector.update(value, iteration)
        if change is not None and change.tier == "confirmed" and change.direction == "slower":
            alarms += 1
            detector.reset()
    return alarms


def delays(make: Make, noise: str, seed: int, numbers: range, faults: Mapping[tuple[float, Shape], Fault]) -> dict[tuple[float, Shape], Delays]:
    """Delay of every fault on every trace. All faults of a trace have one onset, so the healthy part is walked once and the state kept."""
    found: dict[tuple[float, Shape], list[float]] = {key: [] for key in faults}
    early = 0
    onset = next(iter(faults.values())).onset
    length = onset + max(fault.duration for fault in faults.values())
    for number in numbers:
        trace = _Trace(noise, seed, number, length)
        detector, fit = make(), WorkloadResidual()
        if trace.walk(detector, fit, 0, onset, None) is not None:
            early += 1
            continue
        kept = pickle.dumps(detector)
        for key, fault in faults.items():
            at = trace.walk(pickle.loads(kept), copy.copy(fit), onset, onset + fault.duration, fault)
            found[key].append(np.inf if at is None else at - onset)
    return {key: Delays(np.array(values), early) for key, values in found.items()}


class _Trace:
    """One trace's noise and work, on which faults are laid."""

    def __init__(self, noise: str, seed: int, number: int, length: int) -> None:
        rng = generator(seed, noise, number)
        self._series = NOISE[noise](length, rng)
        self._work = work_of(length, rng) if noise in WITH_WORK else None

    def walk(self, detector: Detector, fit: WorkloadResidual, start: int, stop: int, fault: Fault | None) -> int | None:
        """Feed the iterations [start, stop); the first that confirms a slowdown, if any."""
        values = self._series[start:stop]
        if fault is not None:
            values = values * slowdown_of(fault, len(self._series))[start:stop]
        if self._work is not None:
            tokens, squares, seconds = (part[start:stop] for part in self._work)
            rows = zip((values * seconds).tolist(), tokens.tolist(), squares.tolist(), strict=True)
            fed: Iterator[float] = (fit.update(*row) for row in rows)
        else:
            fed = iter(values.tolist())
        for i, value in enumerate(fed):
            change = detector.update(value, start + i)
            if change is not None and change.tier == "confirmed" and change.direction == "slower":
                return start + i
        return None


def all_faults(onset: int = ONSET, duration: int = max(DURATIONS)) -> dict[tuple[float, Shape], Fault]:
    """Every slowdown and shape, at the longest duration."""
    return {(slowdown, shape): Fault(onset, duration, slowdown, shape) for slowdown in SLOWDOWNS for shape in SHAPES}


class Speed(NamedTuple):
    """CPU time per point: of all, of the first and last tenth, and of an addition in a Python loop on the same machine in the same run."""

    us: float
    first_tenth_us: float
    last_tenth_us: float
    reference_ns: float


def speed(make: Make, num: int, seed: int, *, with_residual: bool = False) -> Speed:
    """Time per point on normal noise of 2 %; with_residual adds the fit of a variable workload, whose durations then vary with it."""
    rng = generator(seed, "gauss 1 %", 999_999)
    detector, fit = make(), WorkloadResidual()
    parts = []
    for part in range(10):
        rows, first = _rows(num // 10, rng), part * (num // 10)
        begin = time.process_time()
        if with_residual:
            for i, (value, tokens, squares, seconds) in enumerate(rows, first):
                detector.update(fit.update(value * seconds, tokens, squares), i)
        else:
            for i, (value, *_) in enumerate(rows, first):
                detector.update(value, i)
        parts.append((time.process_time() - begin) / len(rows))
    return Speed(1e6 * float(np.mean(parts)), 1e6 * parts[0], 1e6 * parts[-1], reference_ns())


class Memory(NamedTuple):
    """Bytes that a detector and its residual hold, as Python counts them, and how many of them the later half of the points added."""

    held: int
    added: int


def memory(make: Make, num: int, seed: int, *, with_residual: bool = False) -> Memory:
    """Memory after `num` points of the series of `speed`, and what was added since half of them."""
    rng = generator(seed, "gauss 1 %", 999_998)
    rows = [_rows(num // 2, rng) for _ in range(2)]
    held = []
    tracemalloc.start()
    detector, fit = make(), WorkloadResidual()
    for part in rows:
        for i, (value, tokens, squares, seconds) in enumerate(part):
            detector.update(fit.update(value * seconds, tokens, squares) if with_residual else value, i)
        gc.collect()  # what awaits collection is not held
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return Memory(held[1], held[1] - held[0])


def _rows(num: int, rng: np.random.Generator) -> list[tuple[float, float, float, float]]:
    """Noise of 2 % around 1, tokens, squared lengths, healthy seconds."""
    noise = 1 + 0.02 * rng.standard_normal(num)
    return list(zip(noise.tolist(), *(column.tolist() for column in work_of(num, rng)), strict=True))


def reference_ns(num: int = 300_000) -> float:
    """One step of a Python loop that adds and compares, best of five: what other machines' figures can be divided by."""
    found = []
    for _ in range(5):
        total, begin = 0.0, time.process_time()
        for i in range(num):
            total += i
            if total < 0.0:
                break
        found.append((time.process_time() - begin) / num)
    return 1e9 * min(found)
