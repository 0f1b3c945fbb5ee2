"""Ranks and links proven slow, as their own busy or transfer time shows them now: how slow, whether worse, whether healed.

Recovery is read here and not from the iteration time: after a split a healthy replica may set the pace, and then the
iteration time does not change when the slow rank heals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from statistics import median

from lurcher.control.parts import Part, in_order, part_name
from lurcher.records import Component

WINDOW = 6
"""Iterations in the running estimate of a slow part's factor."""
RECOVERY_WINDOW = 4
"""Iterations in a row that must look healthy before a part is validated for recovery."""
RETRY_ITERATIONS = 8
"""Iterations between two recovery benchmarks of a part that turned out to be slow still."""
IDLE_ITERATIONS = 20
"""The same for a rank on standby or a link without transfers that could show it."""
ESCALATION = 1.15
"""A factor this much above (or below) the one a plan was made for asks for a new plan."""


class WatchedPart:
    """One rank or link proven slow. `slowdown` follows its busy or transfer time; `answered` is the factor that the last plan was made for."""

    def __init__(self, part: Part, slowdown: float) -> None:
        self.part = part
        self.slowdown = slowdown
        self.proven_slowdown = slowdown
        self.answered = slowdown
        self.retry_after = -1
        self.tested_slow = -1  # the last iteration after which a benchmark still found it slow
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def observe(self, ratio: float) -> None:
        """One iteration's busy or transfer time over the expected one."""
        self._recent.append(ratio)
        if len(self._recent) >= 3:
            self.slowdown = max(1.0, median(self._recent))

    def looks_healed(self, iteration: int) -> bool:
        """The last few iterations lie near the healthy level, against the size of the fault."""
        limit = 1.0 + max(0.06, 0.3 * (self.proven_slowdown - 1.0))
        last = list(self._recent)[-RECOVERY_WINDOW:]
        return len(last) == RECOVERY_WINDOW and max(last) < limit and iteration > self.retry_after

    def has_moved(self) -> bool:
        """Much slower or faster than what was last answered, and settled there."""
        settled = len(self._recent) >= RECOVERY_WINDOW and max(self._recent) < ESCALATION * min(self._recent)
        return settled and not 1.0 / ESCALATION < self.slowdown / self.answered < ESCALATION


class Watchlist:
    """All ranks and links proven slow."""

    def __init__(self) -> None:
        self._parts: dict[Part, WatchedPart] = {}

    def __contains__(self, part: Part) -> bool:
        return part in self._parts

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[WatchedPart]:
        return iter(self._parts.values())

    @property
    def slowdown(self) -> dict[int, float]:
        """Rank -> present factor."""
        return {part: w.slowdown for part, w in self._parts.items() if isinstance(part, int)}

    @property
    def links(self) -> dict[Component, float]:
        """Link -> present factor."""
        return {part: w.slowdown for part, w in self._parts.items() if not isinstance(part, int)}

    def add(self, part: Part, slowdown: float) -> None:
        """A part was proven slow."""
        self._parts[part] = WatchedPart(part, slowdown)

    def remove(self, part: Part) -> None:
        """A part was proven healthy again, or is gone."""
        del self._parts[part]

    def observe(self, ratios: Mapping[Part, float]) -> None:
        """One iteration's ratios of ranks and links, as far as there are any."""
        for part, watched in self._parts.items():
            if part in ratios:
                watched.observe(ratios[part])

    def healed(self, iteration: int) -> tuple[Part, ...]:
        """Parts whose own time says that they recovered."""
        return tuple(part for part, w in self._parts.items() if w.looks_healed(iteration))

    def idle(self, iteration: int, working: Collection[Part]) -> tuple[Part, ...]:
        """Parts that were given nothing to do, so that only a benchmark can tell whether they have recovered, and that are due for one."""
        due = iteration - IDLE_ITERATIONS + RETRY_ITERATIONS
        return tuple(part for part, w in self._parts.items() if part not in working and due >= w.retry_after)

    def still_slow(self, part: Part, iteration: int) -> None:
        """A benchmark after this iteration says so."""
        self._parts[part].tested_slow = iteration

    def last_test(self, part: Part) -> int:
        """The last iteration after which a benchmark still found the part slow; -1 if none did since it was proven."""
        return self._parts[part].tested_slow

    def postpone(self, part: Part, iteration: int) -> None:
        """The benchmark said: still slow. Ask again later."""
        self._parts[part].retry_after = iteration + RETRY_ITERATIONS

    @property
    def epoch(self) -> str:
        """Names the present set of faults and factors, "" for none; another name asks for another answer."""
        return ", ".join(f"{part_name(part)} x{self._parts[part].answered:.2f}" for part in in_order(self._parts))

    def settle(self) -> None:
        """Take factors that have moved far as new faults to answer."""
        for watched in self._parts.values():
            if watched.has_moved():
                watched.answered = watched.slowdown
