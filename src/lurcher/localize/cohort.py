"""Suspects by comparison: each rank with its own history, with the rest of the job, and with its like over the replicas.

Stages differ by design, so ranks are compared in their cohort only: same stage, same index in it, other replicas. What
shifts all ranks alike is no rank's fault. A rank whose mates or cohort rose too is named only for what it has of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from math import isfinite
from statistics import median, median_low
from typing import NamedTuple

from lurcher.layout import Layout
from lurcher.localize.line import line_for
from lurcher.localize.links import Flow, link_suspects
from lurcher.records import Component, Suspicion

MANY_STAGES = 128
"""No job has so many stages: of ranks that are heavier by design, as a last stage may be, there are more than one in so many."""
_MAD_TO_SIGMA = 1.4826
_FEW = 4.0
"""Of 4 to 256 ranks that differ by a normal 15 % for good, in at most 1 % of jobs one is over the line then (simulated; 3 % of 4 ranks without)."""


class _Site(NamedTuple):
    """Where a rank stands: its tensor mates, and its cohort over the other replicas."""

    mates: tuple[int, ...]
    cohort: tuple[int, ...]


class _Candidate(NamedTuple):
    rank: int
    slowdown: float
    cohort_ratio: float | None
    peers: tuple[int, ...]


def suspects(
    ratios_own: Mapping[int, float],
    per_unit: Mapping[int, float],
    layout: Layout,
    noise: float,
    min_slowdown: float,
    flows: Sequence[Flow] = (),
    wait_share: Mapping[int, float] | None = None,
) -> tuple[tuple[Suspicion, ...], str]:
    """Suspects, most likely first, and one sentence on why these or why none.

    ratios_own: observed over expected busy time of each rank, by its own history (median of a recent window; 1.0 healthy).
    per_unit: busy time per unit of work, any unit common to all. noise: relative scatter of such a ratio on a healthy
    rank. min_slowdown: least slowdown to be named (GREYHOUND: 1.10). flows: what groups and pairs
    of ranks exchange, over its own history; links that it accuses come after ranks. wait_share: fraction of the iteration that each rank waits. Ranks that are missing
    or not finite are unknown: neither slow nor healthy.
    """
    known = {r: x for r, x in ratios_own.items() if isfinite(x) and x > 0}
    if len(known) < 2:
        return (), f"{len(known)} rank with a known history: nothing to compare it with"
    line = line_for(len(known), noise, min_slowdown)
    # The lower median: with two ranks the mean would hide half of the slowdown, and accuse nobody.
    common = median_low(known.values())
    own = {r: x / common for r, x in known.items()}
    over = {r for r, x in own.items() if x > line}
    sites = _sites(layout)
    named: list[_Candidate] = []
    dropped: list[_Candidate] = []
    for r in sorted(over, key=lambda r: (-own[r], r)):
        # Ranks without a known history may be slow already: they are no measure for others.
        candidate = _against_cohort(r, own[r], per_unit, known.keys() - over, sites.get(r, _Site((), ())))
        agrees = candidate.cohort_ratio is None or candidate.cohort_ratio > 1.0 + (line - 1.0) / 2
        worst_mate = max((own.get(m, 1.0) for m in sites[r].mates), default=1.0) if r in sites else 1.0
        smeared = own[r] - 1.0 < (worst_mate - 1.0) / 2
        (named if agrees and not smeared else dropped).append(candidate)
    if named:
        found = tuple(_suspicion(c, common, line, len(known), own, sites, wait_share) for c in named)
        who = " and ".join(f"rank {c.rank} (x{c.slowdown:.2f})" for c in named)
        reason = f"{who} {'stands' if len(named) == 1 else 'stand'} out of {len(known)} ranks; the line is x{line:.2f}"
        # A busy host makes ranks stand out; what waits for nobody and takes longer all the same is a link's doing, whoever else is suspected.
        return (*found, *link_suspects(flows, noise, min_slowdown, alone=False)), reason
    links = link_suspects(flows, noise, min_slowdown)
    if links:
        who = " or ".join(link.component.id for link in links[:4])
        return links, f"no rank's own work rose, but all that needs link {who} takes longer"
    return (), _why_none(own, common, line, dropped)


def cohort_only(
    per_unit: Mapping[int, float], layout: Layout | None, noise: float = 0.02, min_slowdown: float = 1.10
) -> tuple[tuple[Suspicion, ...], str]:
    """The same without any history, for a job that was slow from its start: only the cohorts can tell, and with less confidence,
    for a rank may be slower than its like for good reasons (other hardware, other work).

    layout None: not known. Then all ranks are taken for one cohort whose own spread counts as noise, and named only if few stand out: a stage with
    more work by design shows as many ranks, or as a wide spread.
    """
    known = {r: x for r, x in per_unit.items() if isfinite(x) and x > 0}
    cohorts = [tuple(sorted(known))] if layout is None else [tuple(r for r in cohort if r in known) for cohort in _cohorts(layout)]
    ratios = {r: ratio for cohort in cohorts if len(cohort) > 1 for r, ratio in _over_the_others(cohort, known).items()}
    if not ratios:
        return (), "no rank has a like in another replica: slow from the start cannot be told from slow by design"
    spread = _spread(ratios.values()) if layout is None else 0.0
    line = line_for(len(known), max(noise, spread), min_slowdown)
    over = sorted((r for r, ratio in ratios.items() if ratio > line), key=lambda r: (-ratios[r], r))
    if not over:
        worst = max(ratios, key=lambda r: ratios[r])
        return (), f"all cohorts are even: the worst is rank {worst} at x{ratios[worst]:.2f}, the line is x{line:.2f}"
    if layout is None and len(over) > max(1, len(ratios) // MANY_STAGES):
        return (
            (),
            f"{len(over)} of {len(ratios)} ranks are over the line of x{line:.2f}: without the layout, that may be a stage with more work by design",
        )
    peers_of = {r: cohort for cohort in cohorts for r in cohort}
    found = tuple(_without_history(r, ratios[r], tuple(p for p in peers_of[r] if p != r), layout is not None) for r in over)
    return found, f"rank {over[0]} is x{ratios[over[0]]:.2f} of its cohort; the line is x{line:.2f}"


def _spread(ratios: Collection[float]) -> float:
    """Scatter of ratios around 1 by their median deviation; of few ranks that is often small by chance, and widened."""
    return _MAD_TO_SIGMA * median(abs(ratio - 1.0) for ratio in ratios) * (1.0 + _FEW / len(ratios))


def _over_the_others(cohort: tuple[int, ...], per_unit: Mapping[int, float]) -> dict[int, float]:
    """Each member over the lower median of the other members."""
    ordered = sorted(cohort, key=lambda r: per_unit[r])
    middle = (len(ordered) - 2) // 2
    return {r: per_unit[r] / per_unit[ordered[middle + 1 if place <= middle else middle]] for place, r in enumerate(ordered)}


def _without_history(r: int, ratio: float, peers: tuple[int, ...], layout_known: bool) -> Suspicion:
    said = f"rank {r} needs x{ratio:.2f} of the median of its cohort ({_names(peers)}) per unit of work; it has no history of its own"
    if not layout_known:
        return Suspicion(
            Component.of_rank(r), "compute", ratio, 0.5, (said, "the layout is not known: all ranks are taken to be given the same work")
        )
    return Suspicion(Component.of_rank(r), "compute", ratio, 0.4 if len(peers) == 1 else 0.6, (said,))


def _cohorts(layout: Layout) -> list[list[int]]:
    """Ranks of the same stage and index in it, over the replicas."""
    cohorts: dict[tuple[int, int], list[int]] = {}
    for _, s, stage in layout.stages():
        for t, r in enumerate(stage.ranks):
            cohorts.setdefault((s, t), []).append(r)
    return list(cohorts.values())


def _sites(layout: Layout) -> dict[int, _Site]:
    cohort_of = {r: cohort for cohort in _cohorts(layout) for r in cohort}
    return {
        r: _Site(tuple(m for m in stage.ranks if m != r), tuple(c for c in cohort_of[r] if c != r))
        for _, _, stage in layout.stages()
        for r in stage.ranks
    }


def _against_cohort(r: int, slowdown: float, per_unit: Mapping[int, float], sound: Set[int], site: _Site) -> _Candidate:
    """Compare with those members of the cohort that are `sound` by themselves; without any there is no cohort to speak of."""
    mine = per_unit.get(r, 0.0)
    peers = tuple(c for c in site.cohort if c in sound and isfinite(per_unit.get(c, 0.0)) and per_unit.get(c, 0.0) > 0)
    if not peers or not isfinite(mine) or mine <= 0:
        return _Candidate(r, slowdown, None, ())
    return _Candidate(r, slowdown, mine / median_low(per_unit[c] for c in peers), peers)


def _suspicion(
    c: _Candidate,
    common: float,
    line: float,
    num: int,
    own: Mapping[int, float],
    sites: Mapping[int, _Site],
    wait_share: Mapping[int, float] | None,
) -> Suspicion:
    site = sites.get(c.rank, _Site((), ()))
    evidence = [
        f"rank {c.rank} needs x{c.slowdown * common:.2f} of its own healthy time for its work; the median of {num} ranks is x{common:.2f}, the line x{line:.2f}"
    ]
    # From one half on the line towards one, the more the rank exceeds it; a measure of the evidence, not a probability.
    confidence = 1.0 - 0.5 * (line - 1.0) / (c.slowdown - 1.0)
    if c.cohort_ratio is not None:
        evidence.append(f"it needs x{c.cohort_ratio:.2f} of its cohort's median per unit of work (same stage and index: {_names(c.peers)})")
    else:
        confidence *= 0.85
        why = "no other member of its cohort is known to be sound" if site.cohort else "it has no cohort, for there is one replica"
        evidence.append(f"{why}: its own history alone speaks")
    for m in site.mates:
        if own.get(m, 1.0) > line and own[m] - 1.0 < (c.slowdown - 1.0) / 2:
            evidence.append(f"its tensor mate rank {m} is up x{own[m]:.2f}, less than half of it: taken for smear")
    shares = {r: x for r, x in (wait_share or {}).items() if isfinite(x)}
    if c.rank in shares and len(shares) > 1:
        others = median(x for r, x in shares.items() if r != c.rank)
        least = shares[c.rank] <= min(shares.values())
        evidence.append(
            f"it waits {'least of all' if least else 'not least'}: {shares[c.rank]:.0%} of the iteration, the others' median is {others:.0%}"
        )
        confidence += 0.3 * (1.0 - confidence) if least else 0.0
    return Suspicion(Component.of_rank(c.rank), "compute", c.slowdown, round(confidence, 3), tuple(evidence))


def _why_none(own: Mapping[int, float], common: float, line: float, dropped: list[_Candidate]) -> str:
    if dropped:
        c = dropped[0]
        return f"rank {c.rank} rose to x{c.slowdown:.2f} of its history, but is x{c.cohort_ratio or 1.0:.2f} of its cohort: not enough evidence"
    if common > line:
        return f"all {len(own)} ranks shifted alike, to x{common:.2f}: no part stands out, so the cause is shared (work, fabric, power)"
    worst = max(own, key=lambda r: own[r])
    return f"no rank stands out: the worst of {len(own)} is rank {worst} at x{own[worst]:.2f}, the line is x{line:.2f}"


def _names(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(r) for r in ranks[:4])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
