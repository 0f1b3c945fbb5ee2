"""Emulated device time: chunks last as long as they should, faults stretch them, a stopped process loses time."""

from __future__ import annotations

import numpy as np
import pytest

from lurcher.clock import FakeClock
from lurcher.config import PaceSection
from lurcher.faults import Fault, parse_fault
from lurcher.model.pace import QUANTUM_NS, Pace
from lurcher.records import Op


class StoppingClock(FakeClock):
    """Every second sleep is stretched, as a stopped and continued process sees it."""

    def __init__(self, stopped_s: float) -> None:
        super().__init__()
        self._stopped_s = stopped_s
        self._sleeps = 0

    def sleep_s(self, duration_s: float) -> None:
        self._sleeps += 1
        super().sleep_s(duration_s + (self._stopped_s if self._sleeps % 2 else 0.0))


def chunk_s(
    clock: FakeClock, faults: list[Fault], iteration: int = 0, phase: Op = Op.FORWARD, share: float = 0.5, tokens: int = 64, squares: int = 1000
) -> float:
    pace = Pace(PaceSection(noise=0.0), 3, 0, faults, clock)
    start_ns = clock.now_ns()
    pace.begin()
    pace.finish(phase, iteration, 2.0, share, tokens, squares)
    return (clock.now_ns() - start_ns) * 1e-9


def test_a_fault_stretches_its_rank_in_its_iterations_only() -> None:
    fault = parse_fault("slow rank 3 x1.8 from 5 to 9")
    healthy = chunk_s(FakeClock(), [])
    assert chunk_s(FakeClock(), [fault], iteration=5) == pytest.approx(1.8 * healthy, rel=1e-6)
    assert chunk_s(FakeClock(), [fault], iteration=9) == pytest.approx(healthy, rel=1e-6)
    assert chunk_s(FakeClock(), [parse_fault("slow rank 2 x1.8 from 5 to 9")], iteration=5) == pytest.approx(healthy, rel=1e-6)


def test_work_grows_with_share_tokens_lengths_and_backward() -> None:
    base = chunk_s(FakeClock(), [])
    assert chunk_s(FakeClock(), [], share=1.0) > 1.9 * base
    assert chunk_s(FakeClock(), [], phase=Op.BACKWARD) > 1.9 * base
    assert chunk_s(FakeClock(), [], tokens=128) > 1.7 * base
    assert chunk_s(FakeClock(), [], squares=4000) > base


def test_real_work_and_collectives_are_inside_the_emulated_time() -> None:
    clock = FakeClock()
    pace = Pace(PaceSection(noise=0.0), 0, 0, [], clock)
    pace.begin()
    clock.sleep_s(0.5)
    pace.exclude_ns(500_000_000)  # of half a second inside a collective, 4 ms are the host's scatter and inside the chunk
    before_ns = clock.now_ns()
    pace.finish(Op.FORWARD, 0, 2.0, 0.5, 64, 1000)
    assert (clock.now_ns() - before_ns) * 1e-9 == pytest.approx(chunk_s(FakeClock(), []) - 0.004, rel=1e-6)


def test_a_stopped_process_loses_the_time_it_was_stopped() -> None:
    healthy = chunk_s(FakeClock(), [])
    slowed = chunk_s(StoppingClock(0.010), [])
    num_quanta = np.ceil(healthy / (QUANTUM_NS * 1e-9))
    assert slowed > healthy + 0.4 * (num_quanta - 1) * 0.009


def test_the_benchmark_is_as_slow_as_the_device() -> None:
    clock = FakeClock()
    pace = Pace(PaceSection(noise=0.0), 3, 0, [parse_fault("slow rank 3 x2.5 from 0 to 9")], clock)
    pace.pad(0.02)
    assert clock.now_ns() * 1e-9 == pytest.approx(0.05, rel=1e-6)


def test_waiting_for_a_core_is_no_loss_to_the_device() -> None:
    clock = StoppingClock(0.010)
    waited_ns = lambda: round(clock.now_ns() * 0.9)  # noqa: E731 - the kernel says that most of the delay was the run queue
    pace = Pace(PaceSection(noise=0.0), 3, 0, [], clock, waited_ns)
    pace.begin()
    pace.finish(Op.FORWARD, 0, 2.0, 0.5, 64, 1000)
    assert clock.now_ns() * 1e-9 < chunk_s(FakeClock(), []) + 0.012


def test_what_a_link_took_inside_a_chunk_comes_on_top_of_the_device() -> None:
    took_s = []
    for link_s in (0.0, 0.05):
        clock = FakeClock()
        pace = Pace(PaceSection(noise=0.0), 3, 0, [], clock)
        pace.begin()
        clock.sleep_s(link_s)
        pace.exclude_link_ns(round(link_s * 1e9))
        pace.finish(Op.FORWARD, 0, 2.0, 0.5, 64, 1000)
        took_s.append(clock.now_ns() * 1e-9)
    assert took_s[1] - took_s[0] == pytest.approx(0.05, abs=1e-6)
