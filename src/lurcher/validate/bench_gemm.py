"""The compute benchmark: repeated matrix products on one rank, at an iteration border (GREYHOUND section on validation)."""

from __future__ import annotations

import time
from statistics import median
from typing import Protocol

import torch

from lurcher.records import BenchResult, Component

NUM_REPEATS = 5
NOMINAL_S = 0.02
"""What one repeat takes on a healthy emulated device. Long against a scheduler's quantum, short against an iteration."""
SIZE = 128


class Padding(Protocol):
    """A device whose work may be padded to emulated time."""

    def pad(self, nominal_s: float) -> None:
        """Take as long as `nominal_s` of healthy work."""
        ...


def bench_gemm(rank: int, device: Padding, *, emulated: bool) -> BenchResult:
    """Median seconds of a few repeats after one warm-up; lower is better.

    On an emulated device each repeat is one small real product plus the device's padding; on a real one it is as many products as fill a like time.
    """
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(SIZE, SIZE, generator=generator)
    products = 1 if emulated else 200
    times_s = []
    for repeat in range(NUM_REPEATS + 1):
        start_ns = time.monotonic_ns()
        b = a
        for _ in range(products):
            b = (a @ b) * (
                2.0 / SIZE
            )  # of the size of `a` again: halved each time, it would soon be so small that a product takes a hundred times as long
        if emulated:
            device.pad(NOMINAL_S)
        if repeat:
            times_s.append((time.monotonic_ns() - start_ns) * 1e-9)
    return BenchResult(Component.of_rank(rank), "gemm", median(times_s), NUM_REPEATS)
