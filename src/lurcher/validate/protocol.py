"""What a benchmark is to the rest of lurcher: something that times one component and gives back a value."""

from __future__ import annotations

from typing import Protocol

from lurcher.records import BenchResult, Component


class Bench(Protocol):
    """A short benchmark of one component. Real ones run on the device, a simulator's on its virtual clock."""

    @property
    def name(self) -> str:
        """What is measured, e.g. "gemm"; results are compared within one name only."""
        ...

    def measure(self, component: Component) -> BenchResult:
        """Time the component once, over a few repeats, within a deadline (DeadlineExpired where it passes)."""
        ...
