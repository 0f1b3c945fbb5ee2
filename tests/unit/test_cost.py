"""The cost model against a made-up job whose chunks follow another formula, with noise, and whose pipeline is run by a plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lurcher.errors import UserError
from lurcher.layout import Layout, Replica, Stage
from lurcher.model.cost import CostModel
from lurcher.model.schedule import schedule_text
from lurcher.records import CHUNK, WORKLOAD, Op

OVERHEAD_S = 0.02
HOP_S = 0.0002


class Job:
    """A job with TP, PP and DP; `run` gives the workload, chunks and duration of the next iteration."""

    def __init__(self, seed: int, noise: float = 0.02, fixed_tokens: bool = False, outliers: float = 0.0, schedule: str = "1f1b") -> None:
        self.schedule = schedule
        self.rng = np.random.default_rng(seed)
        self.data = np.random.default_rng([seed, 1])  # apart, so that the work does not depend on the layout that runs it
        self.noise, self.fixed_tokens, self.outliers = noise, fixed_tokens, outliers
        self.device = self.rng.uniform(0.95, 1.05, 64)  # ranks are not quite alike
        self.index = 0

    def workload(self, num_microbatches: int) -> NDArray[Any]:
        rows = np.zeros(num_microbatches, WORKLOAD)
        rows["iteration"] = self.index
        rows["microbatch"] = np.arange(num_microbatches)
        level = self.data.uniform(0.6, 1.4)  # length-bucketed: iterations differ in work, not only micro-batches
        for i in range(num_microbatches):
            total = 2048 if self.fixed_tokens else int(self.data.integers(1200, 2048))
            lengths = []
            while sum(lengths) < total:
                lengths.append(min(int(self.data.lognormal(5.5, 0.8) * level) + 1, total - sum(lengths)))
            rows["num_tokens"][i], rows["sum_len_sq"][i] = total, sum(length**2 for length in lengths)
        return rows

    def run(self, layout: Layout, slow: Mapping[int, float] | None = None) -> tuple[NDArray[Any], NDArray[Any], float]:
        work = self.workload(layout.num_microbatches)
        chunks: list[tuple[Any, ...]] = []
        longest = 0.0
        for d, replica in enumerate(layout.replicas):
            mine = list(layout.microbatches_of(d))
            texts = schedule_text(self.schedule, len(replica.stages), len(mine))
            durations = {}
            for s, stage in enumerate(replica.stages):
                for word in texts[s].split():
                    microbatch = mine[int(word[1:])]
                    durations[s, word] = self.chunk(chunks, layout, s, stage, word[0], microbatch, work[microbatch], slow or {})
            longest = max(longest, run_pipeline(texts, durations))
        self.index += 1
        return work, np.array(chunks, CHUNK), longest + OVERHEAD_S * float(self.rng.lognormal(0, 0.1))

    def chunk(self, chunks: list[tuple[Any, ...]], layout: Layout, s: int, stage: Stage, kind: str, microbatch: int, work: Any, slow: Any) -> float:
        """Duration of one chunk on a stage; its ranks' rows go to `chunks`."""
        phase = {"F": Op.FORWARD, "B": Op.BACKWARD, "W": Op.WEIGHT}[kind]
        effort = {"F": 1.0, "B": 1.2 if self.schedule == "zb_h1" else 2.1, "W": 0.9}[kind]
        layers = stage.num_layers + (0.3 if s == len(layout.replicas[0].stages) - 1 else 0.0)  # the head
        busy, gap = {}, {}
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            nominal = 3e-4 + layers * share / sum(stage.shares) * (
                2e-6 * float(work["num_tokens"]) ** 1.03 + 4e-8 * float(work["sum_len_sq"]) ** 0.97
            )
            busy[rank] = nominal * effort * self.device[rank] * slow.get(rank, 1.0) * float(self.rng.lognormal(0, self.noise))
            if self.rng.random() < self.outliers:
                busy[rank] *= 5.0
            gap[rank] = 2e-4 * float(self.rng.lognormal(0, 0.3))
        transfer = 4e-4 * float(self.rng.lognormal(0, 0.1)) if len(stage.ranks) > 1 else 0.0
        together = max(busy[r] + gap[r] for r in stage.ranks)
        chunks += [(r, microbatch, phase, busy[r], together - busy[r] - gap[r], transfer, gap[r]) for r in stage.ranks]
        return together + transfer


def run_pipeline(texts: tuple[str, ...], durations: Mapping[tuple[int, str], float]) -> float:
    """Makespan by sweeping over the stages until every action has run."""
    todo, free, ends = [text.split() for text in texts], [0.0] * len(texts), {}
    while any(todo):
        for s, words in enumerate(todo):
            while words:
                word = words[0]
                source = (s - 1, word) if word[0] == "F" else (s + 1, word)
                inside = 0 <= source[0] < len(texts) and word[0] != "W"  # a W needs its own B only, which the text puts before it
                if inside and source not in ends:
                    break
                start = max(free[s], ends[source] + HOP_S if inside else 0.0)
                free[s] = ends[s, words.pop(0)] = start + durations[s, word]
    return max(free, default=0.0)


def layout_of(num_microbatches: int = 16, tp: int = 2, pp: int = 2, dp: int = 2) -> Layout:
    return Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=8, num_microbatches=num_microbatches)


def trained(job: Job, layout: Layout, iterations: int = 30) -> CostModel:
    model = CostModel(job.schedule)
    for _ in range(iterations):
        work, chunks, duration_s = job.run(layout)
        model.observe(layout, work, chunks, duration_s)
    return model


def errors_of(model: CostModel, job: Job, layout: Layout, iterations: int = 30, slow: Mapping[int, float] | None = None) -> NDArray[np.float64]:
    """Relative errors of predictions, each made without having seen the iteration."""
    found = []
    for _ in range(iterations):
        work, _, duration_s = job.run(layout, slow)
        found.append(model.expected_s(layout, work, slow) / duration_s - 1.0)
    return np.array(found)


@pytest.mark.parametrize("fixed_tokens", [False, True])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 2, 2), (1, 4, 2), (2, 1, 3)])
def test_predicts_iterations_of_varying_work(fixed_tokens: bool, tp: int, pp: int, dp: int) -> None:
    layout, job = layout_of(16, tp, pp, dp), Job(1, fixed_tokens=fixed_tokens)
    errors = errors_of(trained(job, layout), job, layout)
    assert np.median(np.abs(errors)) < 0.02  # ResiHP Table 4: 2.8-5.1 % per iteration
    assert abs(np.median(errors)) < 0.01


def test_a_split_backward_pass_is_learned_as_two_phases() -> None:
    layout, job = layout_of(16, 2, 4, 2), Job(8, schedule="zb_h1")
    model = trained(job, layout)
    assert np.median(np.abs(errors_of(model, job, layout))) < 0.02
    assert np.median(np.abs(errors_of(model, job, layout, 12, {5: 1.6}))) < 0.04
    work = job.workload(16)
    forward_s, backward_s, weight_s = model.chunk_times(layout, work)[0]
    assert forward_s.shape == backward_s.shape == weight_s.shape == (4, 8)
    assert 0.7 < np.median(weight_s / forward_s) < 1.0 < np.median(backward_s / forward_s) < 1.3
    table = model.replica_times(layout, 1, 12, work)
    assert table[8] == pytest.approx(model.replica_time(layout, 1, 8, work)) and np.all(np.diff(table) > 0)


def test_is_ready_after_five_iterations_and_says_nan_before() -> None:
    layout, job, model = layout_of(), Job(2), CostModel()
    for _ in range(5):
        assert not model.ready
        work, chunks, duration_s = job.run(layout)
        assert np.isnan(model.expected_s(layout, work))
        model.observe(layout, work, chunks, duration_s)
    assert model.ready
    assert np.median(np.abs(errors_of(model, job, layout))) < 0.03


def test_a_given_slowdown_predicts_the_slow_iteration() -> None:
    layout, job = layout_of(), Job(3)
    model = trained(job, layout)
    for slow in ({0: 1.6}, {5: 1.6}, {3: 2.5, 6: 1.3}):
        errors = errors_of(model, job, layout, 12, slow)
        assert np.median(np.abs(errors)) < 0.04, slow


def test_other_splits_layers_and_shares_need_no_new_fit() -> None:
    layout, job = layout_of(), Job(4)
    model = trained(job, layout)
    assert np.median(np.abs(errors_of(model, job, layout.with_split((11, 5))))) < 0.03
    moved = []
    for replica in layout.replicas:
        first, second = replica.stages
        cut = type(first.chunks[0])
        moved.append(Replica((Stage(first.ranks, (2, 1), (cut(0, 5),)), Stage(second.ranks, (1, 1), (cut(5, 8),))), replica.microbatches))
    other = Layout(8, 16, tuple(moved))
    assert np.median(np.abs(errors_of(model, job, other))) < 0.06


def test_a_frozen_rank_does_not_learn_its_slowness() -> None:
    layout, job = layout_of(), Job(5)
    model = trained(job, layout)
    before_s = model.overhead_s
    for _ in range(20):
        work, chunks, duration_s = job.run(layout, {2: 1.6})
        ratios = model.rank_ratios(layout, work, chunks)
        model.observe(layout, work, chunks, duration_s, frozen_ranks={2})
    assert ratios[2] == pytest.approx(1.6, rel=0.05)
    assert all(abs(ratio - 1.0) < 0.05 for rank, ratio in ratios.items() if rank != 2)
    assert model.overhead_s == before_s
    assert np.median(np.abs(errors_of(model, job, layout))) < 0.02

    learning = trained(job, layout)
    for _ in range(120):  # the same without freezing: the rank's norm moves, so that the test above can fail
        work, chunks, duration_s = job.run(layout, {2: 1.6})
        learning.observe(layout, work, chunks, duration_s)
    assert learning.rank_ratios(layout, work, chunks)[2] < 1.3


def test_frozen_learns_nothing() -> None:
    layout, job = layout_of(), Job(6)
    model = trained(job, layout, 8)
    work, chunks, duration_s = job.run(layout, {1: 3.0})
    before = model.expected_s(layout, work), model.rank_ratios(layout, work, chunks)
    model.observe(layout, work, chunks, 10 * duration_s, frozen=True)
    assert (model.expected_s(layout, work), model.rank_ratios(layout, work, chunks)) == before


def test_rare_outlier_chunks_barely_move_the_fit() -> None:
    layout = layout_of()
    clean, hit = trained(Job(7), layout), trained(Job(7, outliers=0.01), layout)
    work = Job(8).workload(16)
    for (f, b), (g, c) in zip(clean.chunk_times(layout, work), hit.chunk_times(layout, work), strict=True):
        assert np.median(np.abs(g / f - 1)) < 0.01 and np.median(np.abs(c / b - 1)) < 0.01


def test_constant_work_stays_numerically_fine() -> None:
    """Tokens and lengths all alike: intercept and both slopes are one direction only."""
    layout, job = layout_of(), Job(9)
    fixed = job.workload(16)
    fixed["num_tokens"], fixed["sum_len_sq"] = 2048, 500_000
    job.workload = lambda num_microbatches: fixed  # type: ignore[method-assign]
    model = trained(job, layout, 200)
    assert np.median(np.abs(errors_of(model, job, layout))) < 0.01


def test_replica_times_agree_with_the_walk_of_average_microbatches() -> None:
    layout, job = layout_of(12), Job(10)
    model = trained(job, layout)
    work = job.workload(12)
    work["num_tokens"], work["sum_len_sq"] = 1500, 300_000
    times = model.replica_times(layout, 1, 12, work, {4: 1.7})
    assert times.shape == (13,) and times[0] == 0.0 and np.all(np.diff(times) > 0)
    assert times[7] == pytest.approx(model.replica_time(layout, 1, 7, work, {4: 1.7}))
    expected = model.expected_s(layout.with_split((1, 11)), work, {4: 1.7})
    assert times[11] + model.overhead_s == pytest.approx(expected)


def test_a_rank_without_history_is_taken_as_typical() -> None:
    layout, job = layout_of(), Job(11)
    model = trained(job, layout)
    stages = layout.replicas[0].stages
    swapped = Replica((Stage((9, stages[0].ranks[1]), (1, 1), stages[0].chunks), stages[1]), 8)
    other = Layout(8, 16, (swapped, layout.replicas[1]))
    assert np.median(np.abs(errors_of(model, job, other))) < 0.05
    work, chunks, _ = job.run(other)
    assert 9 not in model.rank_ratios(other, work, chunks)


def test_an_empty_replica_costs_nothing_and_a_routed_layout_is_refused() -> None:
    layout, job = layout_of(), Job(12)
    model = trained(job, layout, 6)
    work = job.workload(16)
    forward_s, _ = model.chunk_times(layout.with_split((16, 0)), work)[1]
    assert forward_s.shape == (2, 0)
    assert model.expected_s(layout.with_split((16, 0)), work) > model.expected_s(layout, work)
    empty = Replica((Stage((), (), layout.replicas[1].stages[0].chunks), layout.replicas[1].stages[1]), 0)
    with pytest.raises(UserError, match="empty stage"):
        model.expected_s(Layout(8, 16, (Replica(layout.replicas[0].stages, 16), empty)), work)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UserError, match="allowed are"):
        CostModel("dualpipe")


class BucketedJob(Job):
    """All micro-batches of an iteration are of one length, which differs from iteration to iteration by a factor of seven."""

    def workload(self, num_microbatches: int) -> NDArray[Any]:
        rows = np.zeros(num_microbatches, WORKLOAD)
        rows["iteration"], rows["microbatch"], rows["num_tokens"] = self.index, np.arange(num_microbatches), 2048
        level = np.exp(self.data.uniform(np.log(10_000), np.log(70_000)))
        rows["sum_len_sq"] = level * self.data.uniform(0.98, 1.02, num_microbatches)
        return rows


@pytest.mark.parametrize("seed", range(4))
def test_length_buckets_do_not_lock_the_fit_into_its_first_iteration(seed: int) -> None:
    """Inside one iteration intercept, tokens and pairs cannot be told apart; the next ones tell, and must be let in."""
    job, layout, model = BucketedJob(seed, noise=0.01), Layout.uniform(tp=2, pp=2, dp=2, num_layers=8, num_microbatches=32), CostModel()
    errors = []
    for _ in range(20):
        work, chunks, duration_s = job.run(layout)
        if model.ready:
            errors.append(abs(model.expected_s(layout, work) / duration_s - 1.0))
        model.observe(layout, work, chunks, duration_s)
    assert np.median(errors) < 0.02 and max(errors) < 0.08
