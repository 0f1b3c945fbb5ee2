"""What every detector promises. One contract suite (tests/contract) runs over all of them."""

from __future__ import annotations

from typing import Protocol

from lurcher.records import ChangePoint


class Detector(Protocol):
    """Looks at one series, a point at a time, and says when its level changed. Never looks ahead."""

    @property
    def reason(self) -> str:
        """One sentence: why the detector is in its present state."""
        ...

    def update(self, residual: float, iteration: int) -> ChangePoint | None:
        """Take the next point (observed / expected, 1.0 healthy; any positive unit does) and return the change it confirms, if any."""
        ...

    def rebase(self) -> None:
        """The caller changed something on purpose: learn the level anew, keep the scatter, raise no alarm for the change."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...
