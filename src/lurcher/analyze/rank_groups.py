"""Ranks that became slow together: one component, and so one event, where one thing explains them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lurcher.analyze.period import Ints
from lurcher.analyze.rank_screen import Alarm
from lurcher.analyze.values import SuspectComponent
from lurcher.records import Cause

TOGETHER = 10
"""Samples between the onsets of ranks that became slow together: an onset is an estimate."""
SINGLE = 8
"""So many ranks may become slow together one by one; more of them share a cause, and are one group."""


class Slowed(NamedTuple):
    """Places of ranks that became slow together, and their alarms, one or more each."""

    places: tuple[int, ...]
    alarms: tuple[Alarm, ...]


def together(alarms: Sequence[Alarm], cause: Cause) -> tuple[Slowed, ...]:
    """Alarms by what they say: sets of ranks that share an onset, and single ranks.

    A transfer takes two ends: ranks whose transfer time rose together are the ends of one slow link, or members of one slow group. Of other
    times each rank has its own, but for sets of more than SINGLE.
    """
    sets: list[Slowed] = []
    alone: dict[int, list[Alarm]] = {}
    for bunch in _bunches(alarms):
        places = tuple(sorted({alarm.place for alarm in bunch}))
        if len(places) > (1 if cause == "communication" else SINGLE):
            sets.append(Slowed(places, tuple(bunch)))
        else:
            for alarm in bunch:
                alone.setdefault(alarm.place, []).append(alarm)
    return (*sets, *(Slowed((place,), tuple(mine)) for place, mine in sorted(alone.items())))


def _bunches(alarms: Sequence[Alarm]) -> list[list[Alarm]]:
    """Alarms in the order of their onsets, cut where the next one begins more than TOGETHER samples after the first of its bunch."""
    found: list[list[Alarm]] = []
    for alarm in sorted(alarms, key=lambda alarm: (alarm.onset, alarm.place)):
        if found and alarm.onset - found[-1][0].onset <= TOGETHER:
            found[-1].append(alarm)
        else:
            found.append([alarm])
    return found


def component_of(ranks: Ints, cause: Cause) -> SuspectComponent:
    """A rank, a link between two, or a group with its ranks as its name: `4-7`, `0,2,8-9`."""
    members = tuple(sorted(int(rank) for rank in ranks))
    if len(members) == 1:
        return SuspectComponent(kind="rank", id=str(members[0]), ranks=members)
    if len(members) == 2 and cause == "communication":
        return SuspectComponent(kind="link", id=f"{members[0]}-{members[1]}", ranks=members)
    return SuspectComponent(kind="group", id=_runs(members), ranks=members)


def _runs(members: tuple[int, ...]) -> str:
    array = np.array(members)
    parts = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
