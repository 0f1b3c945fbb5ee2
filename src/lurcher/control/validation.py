"""Benchmarks that were ordered and what they are for. One at a time; suspects and their cohort only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lurcher.config import DetectSection
from lurcher.control.orders import BenchReport
from lurcher.layout import Layout
from lurcher.records import BenchResult, Component, Finding, Suspicion
from lurcher.validate.judge import judge

Purpose = Literal["baseline", "proof", "recovery"]


class Validation:
    """Remembers baselines and the suspicions under test."""

    def __init__(self, detect: DetectSection, *, emulated: bool) -> None:
        self._min_slowdown = detect.rank_slowdown
        self._validated_by: Literal["device", "emulated"] = "emulated" if emulated else "device"
        self._baselines: dict[int, BenchResult] = {}
        self._purpose: Purpose | None = None
        self._suspicions: tuple[Suspicion, ...] = ()

    @property
    def busy(self) -> bool:
        """A benchmark was ordered and its results have not come."""
        return self._purpose is not None

    def ask_baseline(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Every rank, once, while nothing is suspected."""
        self._purpose = "baseline"
        return tuple(ranks)

    def ask_proof(self, suspicions: Sequence[Suspicion], layout: Layout) -> tuple[int, ...]:
        """The suspects and their cohort, at the same instant."""
        self._purpose, self._suspicions = "proof", tuple(suspicions)
        return _with_cohort([r for s in suspicions for r in s.component.ranks], layout)

    def ask_recovery(self, ranks: Sequence[int], layout: Layout) -> tuple[int, ...]:
        """Ranks that look healed, and their cohort."""
        self._purpose = "recovery"
        self._suspicions = tuple(Suspicion(Component.of_rank(r), "compute", 1.0, 0.5) for r in ranks)
        return _with_cohort(ranks, layout)

    def cancel(self) -> bool:
        """The benchmark that was ordered will not come; True if it was the baseline, which then has to be ordered again."""
        purpose, self._purpose = self._purpose, None
        return purpose == "baseline"

    def take(self, report: BenchReport) -> tuple[Purpose, tuple[Finding, ...], str]:
        """Results of what was asked: purpose, one finding per suspect that answered, and a sentence."""
        purpose, self._purpose = self._purpose or "baseline", None
        by_rank = {r: result for result in report.results for r in result.component.ranks}
        silent = f"; no answer in time from ranks {report.missing}" if report.missing else ""
        if purpose == "baseline":
            self._baselines.update(by_rank)
            return purpose, (), f"baseline of the GEMM benchmark taken on {len(by_rank)} ranks{silent}"
        accused = {r for s in self._suspicions for r in s.component.ranks}
        others = [result for r, result in by_rank.items() if r not in accused]
        findings = []
        for suspicion in self._suspicions:
            rank = suspicion.component.ranks[0]
            if rank in by_rank:
                baseline = self._baselines.get(rank)
                findings.append(
                    judge(suspicion, by_rank[rank], baseline, others, self._cohort_baselines(others), self._validated_by, self._min_slowdown)
                )
        return purpose, tuple(findings), f"{len(findings)} of {len(self._suspicions)} suspects tested{silent}"

    def _cohort_baselines(self, others: Sequence[BenchResult]) -> list[BenchResult]:
        return [self._baselines[r] for result in others for r in result.component.ranks if r in self._baselines]


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
