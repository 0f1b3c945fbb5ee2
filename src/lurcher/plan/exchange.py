"""Exchanging places in a layout, one exchange at a time, for as long as the price falls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from lurcher.layout import Layout
from lurcher.model.price import price_many
from lurcher.plan.edit import exchanged
from lurcher.plan.situation import LEAST_GAIN, Situation

MOST_ROUNDS = 16
"""Exchanges in a row; a few slow parts need a few."""
MOST_OFFERS = 64
"""Looked at in each round, so that large jobs are planned in seconds; whoever offers names the best ones first."""
MOST_PAIRS = 256
"""Pairs of exchanges that are tried in a row."""


def swapped(layout: Layout, these: Sequence[int], those: Sequence[int]) -> Layout:
    """These ranks and those have taken each other's places, in order."""
    return exchanged(layout, {**dict(zip(these, those, strict=True)), **dict(zip(those, these, strict=True))})


def climb(
    situation: Situation,
    start: Layout,
    offers: Callable[[Layout], Iterable[Layout]],
    finish: Callable[[Sequence[Layout]], Sequence[Layout]] = list,
    *,
    pairs: bool = False,
) -> Layout:
    """From `start`, the best of the layouts on offer, again and again until none lowers the price of the finished layout.

    With `pairs`, where none does and few are on offer, two in a row are tried. `finish` puts on top what should go with every
    offer, such as the best split. Ties go to the offer named first.
    """
    best = finish([start])[0]
    best_s = priced(situation, [best])[0]
    for _ in range(MOST_ROUNDS):
        near = list(dict.fromkeys(islice(offers(best), MOST_OFFERS)))
        found, found_s = _fastest(situation, finish(near))
        if pairs and not found_s < best_s * (1 - LEAST_GAIN) and len(near) ** 2 <= MOST_PAIRS:
            found, found_s = _fastest(situation, finish(list(dict.fromkeys(beyond for layout in near for beyond in offers(layout)))))
        if found is None or not found_s < best_s * (1 - LEAST_GAIN):
            break
        best, best_s = found, found_s
    return best


def _fastest(situation: Situation, layouts: Sequence[Layout]) -> tuple[Layout | None, float]:
    """The layout of the lowest price, the first of equal ones."""
    times_s = priced(situation, layouts)
    i = min(range(len(layouts)), key=lambda k: (float(f"{times_s[k]:.9g}"), k), default=-1)
    return (layouts[i], times_s[i]) if i >= 0 else (None, float("inf"))


def priced(situation: Situation, layouts: Sequence[Layout]) -> list[float]:
    """Seconds per iteration of each layout; infinite where memory does not hold it."""
    if not layouts:
        return []
    found = price_many(layouts, situation.rates, situation.schedule)
    return [one.iteration_s if one.fits else float("inf") for one in found]
