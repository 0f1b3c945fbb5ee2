"""Benchmarks that were ordered and what they are for. One at a time; suspects and their cohort only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from lurcher.config import DetectSection
from lurcher.control.orders import BenchReport
from lurcher.control.parts import Part, component_of
from lurcher.layout import Layout
from lurcher.records import BenchResult, Component, Finding, Suspicion
from lurcher.validate.judge import judge
from lurcher.validate.rounds import Round, rounds_of

Purpose = Literal["baseline", "proof", "recovery"]
STILL_SLOW = 0.1
"""A link is slow still if it is by more than this part of what was proven: messages over a fast link scatter by more than their own 10 %."""
LIKE_LINKS = 8
"""Links that are tested beside the suspected ones, for comparison."""


class BenchOrder(msgspec.Struct, frozen=True):
    """What to benchmark at the next border: ranks, each by itself, and rounds of links. False where it is nothing."""

    ranks: tuple[int, ...] = ()
    rounds: tuple[Round, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranks or self.rounds)


NOTHING = BenchOrder()


class Validation:
    """Remembers baselines and the suspicions under test."""

    def __init__(self, detect: DetectSection, *, emulated: bool) -> None:
        self._min_slowdown = detect.rank_slowdown
        self._validated_by: Literal["device", "emulated"] = "emulated" if emulated else "device"
        self._baselines: dict[tuple[str, str], BenchResult] = {}  # by kind and id: a link that lost an end has another, and is the same
        self._purpose: Purpose | None = None
        self._suspicions: tuple[Suspicion, ...] = ()
        self._links: dict[tuple[int, ...], Component] = {}
        self._proven: dict[Component, float] = {}

    @property
    def busy(self) -> bool:
        """A benchmark was ordered and its results have not come."""
        return self._purpose is not None

    def ask_baseline(self, ranks: Sequence[int], links: Collection[Component] = ()) -> BenchOrder:
        """Every rank and every link in use, once, while nothing is suspected."""
        self._purpose = "baseline"
        return BenchOrder(tuple(ranks), self._rounds(links))

    def ask_proof(self, suspicions: Sequence[Suspicion], layout: Layout, links: Collection[Component] = ()) -> BenchOrder:
        """The suspects and their cohort, at the same instant. `links`: those that suspected ones can be compared with."""
        self._purpose, self._suspicions = "proof", tuple(suspicions)
        return self._tests([s.component for s in suspicions], layout, links)

    def ask_recovery(self, parts: Sequence[Part], layout: Layout, links: Collection[Component] = ()) -> BenchOrder:
        """Parts that look healed, and their cohort."""
        self._purpose = "recovery"
        self._suspicions = tuple(Suspicion(component_of(p), "compute" if isinstance(p, int) else "communication", 1.0, 0.5) for p in parts)
        return self._tests([s.component for s in self._suspicions], layout, links)

    def cancel(self) -> bool:
        """The benchmark that was ordered will not come; True if it was the baseline, which then has to be ordered again."""
        purpose, self._purpose = self._purpose, None
        return purpose == "baseline"

    def take(self, report: BenchReport) -> tuple[Purpose, tuple[Finding, ...], str]:
        """Results of what was asked: purpose, one finding per suspect that answered, and a sentence."""
        purpose, self._purpose = self._purpose or "baseline", None
        results = {result.component: result for result in map(self._named, report.results)}
        silent = f"; no answer in time from ranks {report.missing}" if report.missing else ""
        if purpose == "baseline":
            self._baselines |= {_key(component): result for component, result in results.items()}
            num_links = sum(component.kind == "link" for component in results)
            more = f", and of the link benchmark on {num_links} links" if num_links else ""
            return purpose, (), f"baseline of the GEMM benchmark taken on {len(results) - num_links} ranks{more}{silent}"
        found = [self._judged(suspicion, results, purpose) for suspicion in self._suspicions if suspicion.component in results]
        if purpose == "proof":
            self._proven |= {finding.component: finding.slowdown for finding in found if finding.proven}
        for component, result in results.items():  # a host that was busy when the baseline was taken made a link look slow for good
            before = self._baseline(component)
            if component.kind == "link" and before is not None and result.measured < before.measured:
                self._baselines[_key(component)] = result
        return purpose, tuple(found), f"{len(found)} of {len(self._suspicions)} suspects tested{silent}"

    def _judged(self, suspicion: Suspicion, results: dict[Component, BenchResult], purpose: Purpose) -> Finding:
        """Against all that was tested beside it, without the other suspects; of links with them, for mostly one of them is slow, and they are few."""
        accused = {s.component for s in self._suspicions}
        is_link = suspicion.component.kind == "link"
        others = [result for component, result in results.items() if component not in accused or is_link and component != suspicion.component]
        before = [known for result in others if (known := self._baseline(result.component)) is not None]
        baseline = self._baseline(suspicion.component)
        limit = self._min_slowdown
        if is_link and purpose == "recovery":
            limit = max(limit, 1.0 + STILL_SLOW * (self._proven.get(suspicion.component, 1.0) - 1.0))
        return judge(suspicion, results[suspicion.component], baseline, others, before, self._validated_by, limit)

    def _tests(self, suspects: Sequence[Component], layout: Layout, links: Collection[Component]) -> BenchOrder:
        ranks = [component.ranks[0] for component in suspects if component.kind == "rank"]
        accused = [component for component in suspects if component.kind == "link"]
        alike = [link for link in links if _key(link) in self._baselines and link not in accused][:LIKE_LINKS] if accused else []
        return BenchOrder(_with_cohort(ranks, layout) if ranks else (), self._rounds([*accused, *alike]))

    def _baseline(self, component: Component) -> BenchResult | None:
        known = self._baselines.get(_key(component))
        return None if known is None else msgspec.structs.replace(known, component=component)

    def _rounds(self, links: Iterable[Component]) -> tuple[Round, ...]:
        """The links by their ends; results name these."""
        self._links = {link.ranks: link for link in links}
        return rounds_of((a, b) for a, b in self._links)

    def _named(self, result: BenchResult) -> BenchResult:
        """With the link's own name."""
        if result.component.kind != "link":
            return result
        return msgspec.structs.replace(result, component=self._links.get(result.component.ranks, result.component))


def _key(component: Component) -> tuple[str, str]:
    return component.kind, component.id


def _with_cohort(ranks: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The ranks, and those in the same place of other replicas; where there is no other replica, their tensor mates."""
    chosen = set(ranks)
    for rank in ranks:
        if rank not in layout.ranks:  # on standby: any that work can be compared with
            chosen.update(layout.ranks)
            continue
        place = layout.position(rank)
        for d, s, stage in layout.stages():
            if s == place.pp and place.tp < stage.tp_size and d != place.dp:
                chosen.add(stage.ranks[place.tp])
        if len(layout.replicas) == 1:
            chosen.update(layout.ranks)
    return tuple(sorted(chosen))
