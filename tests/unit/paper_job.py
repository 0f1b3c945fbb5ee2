"""A job on paper: chunk times with their own functional form and noise, walked along the schedule. Drives the coordinator without a process.

It stands in for the supervisor and the ranks: orders take effect at the next border, as in a live job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from lurcher.config import DetectSection, ModelSection, PlanSection
from lurcher.control.background import Planner
from lurcher.control.coordinator import Coordinator
from lurcher.control.death import way_on
from lurcher.control.orders import BenchReport, Outbox, PlanReport, RanksLost, StepSummary
from lurcher.layout import Layout
from lurcher.localize.links import Nodes
from lurcher.model.critical_path import compile_schedule, finish_times
from lurcher.model.price import price
from lurcher.model.rates import Rates
from lurcher.model.schedule import schedule_text
from lurcher.records import CHUNK, ITERATION, WORKLOAD, BenchResult, Component, Op, Reconfiguration
from lurcher.validate.rounds import Round

SEQ_LEN = 64
OVERHEAD_S = 0.03


@dataclass
class PaperJob:
    """Faults are (rank, factor, first slow iteration, first healthy one again). `common` slows everything alike from an iteration on."""

    layout: Layout
    faults: list[tuple[int, float, int, int]] = field(default_factory=list)
    noise: float = 0.02
    length_spread: float = 0.3
    seed: int = 0
    common: tuple[float, int, int] = (1.0, 0, 0)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def factor(self, rank: int, iteration: int) -> float:
        """How slow a rank is in an iteration."""
        factor = self.common[0] if self.common[1] <= iteration < self.common[2] else 1.0
        for r, f, begin, end in self.faults:
            if r == rank and begin <= iteration < end:
                factor *= f
        return factor

    def step(self, iteration: int, layout: Layout, pause_s: float = 0.0) -> StepSummary:
        """One iteration on `layout`."""
        num = layout.num_microbatches
        workload = np.zeros(num, WORKLOAD)
        workload["iteration"], workload["microbatch"], workload["num_tokens"] = iteration, np.arange(num), SEQ_LEN
        scale = np.exp(self.length_spread * self.rng.standard_normal())
        workload["sum_len_sq"] = np.clip(SEQ_LEN**2 * 0.3 * scale * np.exp(0.2 * self.rng.standard_normal(num)), SEQ_LEN, SEQ_LEN**2)
        chunks = []
        longest_s = 0.0
        for d, replica in enumerate(layout.replicas):
            chunks.append(self._replica_chunks(iteration, layout, d, workload))
            if replica.microbatches and not layout.routes:
                times = [self._stage_times(chunks[-1], layout, d, phase) for phase in (Op.FORWARD, Op.BACKWARD)]
                order = compile_schedule(schedule_text("1f1b", len(replica.stages), replica.microbatches))
                longest_s = max(longest_s, float(np.max(finish_times(order, *times, 2e-4).makespan_s)))
        if layout.routes:
            longest_s = self._routed_s(iteration, layout, workload)
        duration_s = (longest_s + OVERHEAD_S) * (1 + 0.5 * self.noise * self.rng.standard_normal())
        every = np.concatenate(chunks)
        return StepSummary(iteration, layout, _rows(iteration, layout, every, workload, duration_s), every, workload, duration_s, pause_s)

    def _replica_chunks(self, iteration: int, layout: Layout, d: int, workload: np.ndarray) -> np.ndarray:
        parts = []
        for s, stage in enumerate(layout.replicas[d].stages):
            here = list(layout.microbatches_of(d))
            if layout.routes:
                here = [m for m in range(layout.num_microbatches) if layout.executor(m, stage.chunks[0].first) == (d, s)]
            layers = stage.num_layers + (0.2 if s == len(layout.replicas[d].stages) - 1 else 0.0)
            for rank, share in zip(stage.ranks, stage.shares, strict=True):
                for phase, ratio in ((Op.FORWARD, 1.0), (Op.BACKWARD, 2.0)):
                    mine = np.zeros(len(here), CHUNK)
                    mine["rank"], mine["phase"] = rank, phase
                    mine["microbatch"] = here
                    work = workload[mine["microbatch"]]
                    layer_s = 150e-6 * work["num_tokens"] ** 0.99 + 1e-6 * work["sum_len_sq"] ** 0.97
                    busy_s = (2e-4 + layers * share / sum(stage.shares) * ratio * layer_s) * self.factor(rank, iteration)
                    mine["busy_s"] = busy_s * np.exp(self.noise * self.rng.standard_normal(len(mine)))
                    mine["transfer_s"], mine["gap_s"] = 4e-4, 2e-4
                    parts.append(mine)
        return np.concatenate(parts)

    def _routed_s(self, iteration: int, layout: Layout, workload: np.ndarray) -> float:
        """What the planner's price says for average micro-batches: routes couple replicas, which no walk of one pipeline shows."""
        forward_s = float(np.mean(150e-6 * workload["num_tokens"] ** 0.99 + 1e-6 * workload["sum_len_sq"] ** 0.97))
        factors = {rank: self.factor(rank, iteration) for rank in layout.ranks}
        return price(layout, Rates(forward_s=forward_s, backward_s=2 * forward_s, head_layers=0.2, launch_s=1e-3, slowdown=factors)).iteration_s

    def _stage_times(self, chunks: np.ndarray, layout: Layout, d: int, phase: Op) -> np.ndarray:
        stages = []
        for stage in layout.replicas[d].stages:
            busy = [chunks["busy_s"][(chunks["rank"] == r) & (chunks["phase"] == phase)] for r in stage.ranks]
            stages.append(np.max(busy, axis=0) + 6e-4)
        return np.array(stages)

    def benchmark(self, ranks: tuple[int, ...], iteration: int) -> BenchReport:
        """The GEMM benchmark of these ranks at the border after `iteration`."""
        results = tuple(
            BenchResult(Component.of_rank(r), "gemm", 0.02 * self.factor(r, iteration) * (1 + 0.3 * self.noise * self.rng.standard_normal()), 5)
            for r in ranks
        )
        return BenchReport(iteration, results)

    def benchmark_links(self, rounds: tuple[Round, ...], iteration: int) -> BenchReport:
        """There are no links here."""
        return BenchReport(iteration, ())


def _rows(iteration: int, layout: Layout, chunks: np.ndarray, workload: np.ndarray, duration_s: float) -> np.ndarray:
    rows = np.zeros(len(layout.ranks), ITERATION)
    rows["index"], rows["rank"], rows["duration_s"], rows["expected_s"] = iteration, layout.ranks, duration_s, np.nan
    for row in rows:
        mine = chunks[chunks["rank"] == row["rank"]]
        row["busy_s"] = mine["busy_s"].sum()
        row["wait_s"] = max(0.0, duration_s - row["busy_s"])
        done = mine["microbatch"][mine["phase"] == Op.FORWARD]
        row["num_tokens"], row["sum_len_sq"] = workload["num_tokens"][done].sum(), workload["sum_len_sq"][done].sum()
    return rows


def drive(
    job: PaperJob,
    num_iterations: int,
    plan: PlanSection | None = None,
    planner: Planner | None = None,
    thinks: int = 1,
    *,
    num_atoms: int = 1,
    deaths: dict[int, tuple[int, ...]] | None = None,
    returns: dict[int, tuple[int, ...]] | None = None,
    nodes: Nodes | None = None,
) -> tuple[Coordinator, list[Outbox]]:
    """Run the job on paper to its end; returns the coordinator and everything it said. A planner answers after `thinks` iterations.

    `deaths` and `returns`: ranks that are gone, or stand by again, from an iteration on.
    """
    coordinator = Coordinator(DetectSection(), plan or PlanSection(), job.layout, "1f1b", emulated=True, num_atoms=num_atoms, nodes=nodes)
    layout, out, said, pause_s = job.layout, Outbox(), [], 0.0
    answers: list[tuple[int, PlanReport]] = []
    for iteration in range(num_iterations):
        while answers and answers[0][0] <= iteration:
            said.append(coordinator.step(float(iteration), answers.pop(0)[1]))
        if deaths and iteration in deaths:
            layout, out, pause_s = _without(coordinator, layout, deaths[iteration], iteration, said), Outbox(), 0.0
        if returns and iteration in returns:
            layout = msgspec.structs.replace(layout, standby=(*layout.standby, *returns[iteration]), generation=layout.generation + 1)
        step = job.step(iteration, layout, pause_s)
        border, out = out, coordinator.step(float(iteration), step)
        said.append(out)
        if out.problem is not None and planner is not None:
            answers.append((iteration + thinks, PlanReport(iteration, out.problem, planner(out.problem), 0.25)))
        pause_s = 0.0
        if border.bench or border.rounds:
            rounds = tuple(tuple(pair for pair in one if set(pair) <= set(layout.members)) for one in border.rounds)
            alone, pairs = job.benchmark(border.bench, iteration), job.benchmark_links(rounds, iteration)
            report = BenchReport(iteration, (*alone.results, *pairs.results), alone.missing)
            answer = coordinator.step(float(iteration), report)
            said.append(answer)
            pause_s = 0.15
        if border.layout is not None:
            layout, pause_s = border.layout, 0.01
    return coordinator, said


NUM_ATOMS = 8


def _without(coordinator: Coordinator, layout: Layout, lost: tuple[int, ...], iteration: int, said: list[Outbox]) -> Layout:
    """As the supervisor does it: the plan for those who are left, and then a word to the coordinator."""
    model = ModelSection(num_layers=layout.num_layers, num_kv_heads=NUM_ATOMS)
    plan = way_on(model, layout, lost, coordinator.view.rates(coordinator.watchlist.slowdown), "1f1b", iteration, None).plan
    assert plan is not None
    done = Reconfiguration(plan, plan.layout.generation, iteration, 0.2, 0, "applied", plan.reason)
    said.append(coordinator.step(float(iteration), RanksLost(iteration, lost, done)))
    return plan.layout
