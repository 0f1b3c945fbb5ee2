"""A run directory as the facts that every form of the report is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.records import Decision, Place, Reconfiguration
from lurcher.report.verdict_view import EventView, VerdictView, view_verdict
from lurcher.runlog import RunHeader, RunReader

T = TypeVar("T")


@dataclass(frozen=True)
class Series:
    """The job's iteration time: one entry an iteration. `expected_s` is NaN while the model was not fitted."""

    index: np.ndarray
    observed_s: np.ndarray
    expected_s: np.ndarray

    def between(self, first: int, end: int) -> np.ndarray:
        """Observed seconds of iterations `first` .. `end - 1`."""
        return self.observed_s[(self.index >= first) & (self.index < end)]


@dataclass(frozen=True)
class Facts:
    """What was read from one run directory. `ended` is False while state.json is there: the run goes on, or died."""

    name: str
    header: RunHeader
    rows: np.ndarray
    series: Series
    decisions: list[Decision]
    windows: list[tuple[int, str, np.ndarray]]
    verdict: VerdictView | None
    ended: bool

    @property
    def event(self) -> EventView | None:
        """The event the report is about."""
        return self.verdict.main_event if self.verdict else None

    @property
    def has_emulated_nodes(self) -> bool:
        """Whether the hosts that places name are one host, which stood for several."""
        return bool(self.header.job.get("layout", {}).get("ranks_per_node"))

    @property
    def suspects(self) -> frozenset[int]:
        """Ranks of the event's suspects."""
        return frozenset(r for suspect in self.event.suspects for r in suspect.component.ranks) if self.event else frozenset()

    @property
    def layout(self) -> Layout:
        """The layout the run began with."""
        return self.header.layout

    @property
    def places(self) -> dict[int, Place]:
        """Where each rank ran."""
        return {place.rank: place for place in self.header.places}

    def reconfigurations(self) -> list[Reconfiguration]:
        """Every plan that was carried out or tried, in order."""
        return [value for d in self.decisions if d.kind == "reconfiguration" and (value := value_as(d, Reconfiguration))]


def load(run: RunReader) -> Facts:
    """Read everything a report shows."""
    rows = run.iterations()
    return Facts(
        name=run.path.resolve().name,
        header=run.header,
        rows=rows,
        series=job_series(rows),
        decisions=run.decisions(),
        windows=run.events(),
        verdict=view_verdict(run.verdict(), str(run.path / "verdict.json")),
        ended=run.state() is None,
    )


def value_as(decision: Decision, kind: type[T]) -> T | None:
    """The value of a decision as struct `kind`, or None where it is another or was written by a version that shaped it differently."""
    try:
        return msgspec.convert(decision.value, kind)
    except (msgspec.ValidationError, LurcherError):  # the second: a layout that does not hold together
        return None


def job_series(rows: np.ndarray) -> Series:
    """Median over ranks of every iteration's duration and expectation."""
    index = np.unique(rows["index"])
    return Series(index, group_by(rows["index"], rows["duration_s"], median_of), group_by(rows["index"], rows["expected_s"], median_of))


def group_by(keys: np.ndarray, values: np.ndarray, reduce: Callable[[Any], Any]) -> np.ndarray:
    """`reduce` over the values of each distinct key, in the order of np.unique(keys). `reduce` works along the last axis."""
    if not len(keys):
        return np.empty(0)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[0]] - 1))
    sizes = np.diff(starts, append=len(keys))
    if (sizes == sizes[0]).all():  # the usual case, 100 times faster at 100,000 ranks
        return np.asarray(reduce(values[order].reshape(len(starts), sizes[0])))
    return np.array([reduce(part) for part in np.split(values[order], starts[1:])])


def median_of(values: np.ndarray) -> np.ndarray:
    """Median along the last axis over the finite values; NaN, without numpy's warning, where there is none."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf), axis=-1)
    count = np.isfinite(values).sum(axis=-1)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[..., None], -1)[..., 0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[-1] - 1)[..., None], -1)[..., 0]
    return np.where(count > 0, (low + high) / 2, np.nan)
