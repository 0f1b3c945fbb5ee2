"""The bound for given rates: seconds per iteration that no layout of a wide class beats (DESIGN section 7).

The class: at most as many replicas, stages per replica, and ranks per stage as the present layout; every stage on ranks of one
node, which share its layers in whole atoms; any assignment of ranks, layers, micro-batches. Spare nodes of a restart are outside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.model.schedule import SPLIT_BACKWARD
from lurcher.plan.fill import UNPROVEN, counted_speed, least_units
from lurcher.plan.node_speed import living_nodes, node_hulls
from lurcher.plan.whole import Line, least_walk

Floats = NDArray[np.float64]
ROUNDS = 4
"""Each round raises the bound by what the last one proved; the first is the one that matters."""


@dataclass(frozen=True)
class Least:
    """`seconds` per iteration, and the same for layouts that route micro-batches to other replicas, which can use the bubble."""

    seconds: float
    routed_s: float
    why: str


@dataclass(frozen=True, eq=False)
class Job:
    """What the terms need of a layout and its rates: `work` of a micro-batch in layers, `steps` the stages' speeds (layers/s), fastest first."""

    rates: Rates
    schedule: str
    work: float
    num_microbatches: int
    num_replicas: int
    num_stages: int  # of a replica
    steps: Floats
    stages: Floats  # layers/s of the fastest, second fastest, ... stage, fastest first
    line: Line
    launch_s: float  # of a micro-batch on a stage
    hop_s: float
    most_ranks: int  # living, on a node
    largest: int  # ranks of a stage
    best_speed: float  # of a rank
    backward_part: float
    way: float  # of the work that a micro-batch meets on its way down and back


def least_iteration(layout: Layout, rates: Rates, schedule: str, num_atoms: int) -> Least:
    """The bound, with all its terms."""
    return least_of(job_of(layout, rates, schedule, num_atoms))


def least_of(job: Job, *, whole: bool = True) -> Least:
    """The bound. Its terms, each a lower bound on every layout of the class; the sum of the last four lines is returned.

    work        M w <= T sum of the speeds: no stage works longer than T
    fill        (M + sum (P_i - 1)) w <= T sum of the speeds: see `fill.counted_speed`
    longest     some replica runs ceil(M / D) micro-batches, through at most P stages, none faster than the fastest, each of whole
                layers: see `fill.least_units` and `whole.least_walk`
    whole       see `_whole`: some replica runs one more, or enough stages are good enough for none to run less
    pipeline    the largest of the four
    + gradients see `_gradients`
    + optimizer some stage holds 1 / P of the layers, and no stage is faster than the best on a healthy node
    + overhead  as given
    With fewer replicas gradients cost less and pipelines more, so the least over their number is taken. Without `whole` the
    terms `longest` and `whole`, which take most of the work, are left out.
    """
    rates = job.rates
    best = Least(float("inf"), float("inf"), "")
    through: dict[tuple[int, int], float] = {}
    for num_replicas in range(job.num_replicas, 0, -1):
        after_s = _optimizer(job) + _gradients(job, num_replicas) + rates.overhead_s
        terms = _pipeline(job, num_replicas)
        if whole and max(terms.values()) + after_s < best.seconds:
            terms |= _whole(job, num_replicas, max(terms.values()), through)
        pipeline_s = max(terms.values())
        if pipeline_s + rates.overhead_s >= best.seconds:
            break
        why = max(terms, key=lambda name: terms[name])
        routed_s = max(terms["work"], job.way * job.work / float(job.steps[0]))
        best = min(best, Least(pipeline_s + after_s, min(pipeline_s, routed_s) + after_s, why), key=lambda least: least.seconds)
    return best


def job_of(layout: Layout, rates: Rates, schedule: str, num_atoms: int) -> Job:
    """What the bound is made of, for `least_of`."""
    nodes = living_nodes(layout, rates)
    largest = max(stage.tp_size for _, _, stage in layout.stages())
    by_speeds = node_hulls(nodes, rates, num_atoms, largest)
    steps = -np.sort(-np.concatenate([by_speeds[speeds] for speeds in nodes]))
    # n stages on a node have the mean speed H(n) / n at most, H the sum of its steps
    means = {speeds: np.cumsum(hull) / np.arange(1, len(speeds) + 1) for speeds, hull in by_speeds.items()}
    num_stages = max(len(replica.stages) for replica in layout.replicas)
    per_byte = 1.0 / max(rates.link_bytes_per_s, rates.node_bytes_per_s) if rates.link_bytes_per_s and rates.node_bytes_per_s else 0.0
    layer_s = rates.forward_s + rates.backward_s + rates.weight_s
    # Launches and all-reduces are alike in both passes and bring their times nearer to each other. Launches weigh most in a stage of
    # one layer on the fastest ranks, which takes `shortest_s` besides; for all-reduces, which a slow link stretches, there is no such least.
    shortest_s = 1.0 / float(steps[0])
    backward_s = rates.launch_s + shortest_s * (rates.backward_s + rates.weight_s) / layer_s
    backward_part = 0.5 if rates.tp_bytes else backward_s / (2 * rates.launch_s + shortest_s)
    return Job(
        rates=rates,
        schedule=schedule,
        work=layout.num_layers + rates.embed_layers + rates.head_layers,
        num_microbatches=layout.num_microbatches,
        num_replicas=len(layout.replicas),
        num_stages=num_stages,
        steps=steps[: len(layout.replicas) * num_stages],
        stages=-np.sort(-np.concatenate([means[speeds] for speeds in nodes])),
        line=Line(schedule, layout.num_layers, rates.embed_layers, rates.head_layers, shortest_s, 2 * rates.launch_s, backward_part),
        launch_s=2 * rates.launch_s,
        hop_s=rates.hop_s + rates.hop_bytes * per_byte,
        most_ranks=max(len(speeds) for speeds in nodes),
        largest=largest,
        best_speed=max(speeds[0] for speeds in nodes),
        backward_part=backward_part,
        way=1.0 - (rates.weight_s or rates.backward_s / 2) / layer_s if schedule in SPLIT_BACKWARD else 1.0,
    )


def _pipeline(job: Job, num_replicas: int) -> dict[str, float]:
    """The terms `work` and `fill`, with `num_replicas` replicas."""
    steps = job.steps[: num_replicas * job.num_stages]
    rate = num_replicas * _throughput(job, np.array(steps.sum() / num_replicas))
    found = {"work": job.num_microbatches / float(rate), "fill": 0.0}
    if job.schedule not in UNPROVEN:
        for _ in range(ROUNDS):
            found["fill"] = max(found["fill"], _fill(job, num_replicas, steps, max(found.values())))
    return found


def _whole(job: Job, num_replicas: int, known_s: float, through: dict[tuple[int, int], float]) -> dict[str, float]:
    """The terms `longest` and `whole`, with layers and micro-batches in whole numbers.

    Let m = ceil(M / D), and T too short for m + 1. Replicas that run fewer than m are at most D m - M, so D P - P (D m - M)
    stages stand in replicas that run m in T. So T is no shorter than one stage as slow as the last of so many, fastest first,
    among the fastest possible others allows; or some replica has a stage less. `through` keeps what `_through` found.
    """
    most = -(-job.num_microbatches // num_replicas)
    longest_s = max(_through(job, job.num_stages, most, through), known_s)
    found = {"longest": longest_s, "whole": 0.0}
    needed = num_replicas * job.num_stages - job.num_stages * (num_replicas * most - job.num_microbatches)
    if needed < 1 or job.schedule in UNPROVEN:
        return found
    slow_s = 1.0 / float(job.stages[needed - 1]) if needed <= len(job.stages) else float("inf")
    if slow_s <= job.line.layer_s * (1 + 1e-9):
        return found
    known_s = max(known_s, longest_s)
    more_s = _through(job, job.num_stages, most + 1, through)
    shorter_s = _through(job, job.num_stages - 1, most, through)
    if min(more_s, shorter_s) > known_s and slow_s < float("inf"):
        shorter_s = min(shorter_s, _one(job, job.num_stages, most, known_s, slow_s))
    found["whole"] = min(more_s, shorter_s)  # it may be below what is known: then it is not the largest term
    return found


def _through(job: Job, most_stages: int, num_microbatches: int, through: dict[tuple[int, int], float]) -> float:
    """So many micro-batches through so many fastest stages at most; fewer only where `least_units` does not rule them out."""
    key = most_stages, num_microbatches
    if key not in through:
        found = float("inf")
        for stages in range(most_stages, 0, -1):
            units = least_units(job.schedule, stages, num_microbatches, job.backward_part, job.way)
            rough_s = units * (job.work / (stages * float(job.steps[0])) + job.launch_s) + 2 * (stages - 1) * job.hop_s
            if rough_s < found:
                found = min(found, _one(job, stages, num_microbatches, rough_s))
        through[key] = found
    return through[key]


def _one(job: Job, num_stages: int, num_microbatches: int, known_s: float, slow_s: float | None = None) -> float:
    """One pipeline of the fastest stages, hops included."""
    hops_s = 2 * (num_stages - 1) * job.hop_s
    return least_walk(job.line, num_stages, num_microbatches, max(known_s - hops_s, 1e-9), slow_s) + hops_s


def _fill(job: Job, num_replicas: int, steps: Floats, known_s: float) -> float:
    """The `fill` term, given that the pipelines take at least `known_s`.

    Of J stages in D replicas: replica i of speed V_i runs at most V_i (T - 2 (P_i - 1) hop) / (w + launch V_i) - (P_i - 1)
    micro-batches. Summed, the first part is concave in V_i, so equal V_i give the most; the hops' part is convex in P_i.
    """
    walk_s = known_s - 2 * (job.num_stages - 1) * job.hop_s
    if walk_s <= 0:
        return 0.0
    fastest = float(steps[0])
    least = counted_speed(job.work + job.launch_s * job.num_stages * fastest, walk_s)
    if least > fastest:  # so few micro-batches that the lemma says nothing
        return 0.0
    counted = np.maximum(steps, least)
    num = np.arange(num_replicas, len(steps) + 1, dtype=np.float64)  # J: every replica has a stage
    if not len(num):
        return 0.0
    rate = num_replicas * _throughput(job, np.cumsum(counted)[num_replicas - 1 :] / num_replicas)
    each = num / num_replicas
    slowest = float(counted[-1])
    hops = 2 * job.hop_s * num_replicas * (each - 1) * each * slowest / (job.work + job.launch_s * job.num_stages * slowest)
    return float(((job.num_microbatches + num_replicas * (each - 1) + hops) / rate).min())


def _throughput(job: Job, speed: Floats) -> Floats:
    """Micro-batches per second of a replica whose stages' speeds sum to `speed`, when no stage pauses."""
    return speed / (job.work + job.launch_s * speed)


def _optimizer(job: Job) -> float:
    """Seconds of the optimizer at least."""
    rates = job.rates
    fastest = max(k * rates.efficiency(k) for k in range(1, job.largest + 1)) * job.best_speed
    return rates.optimizer_layer_s * job.work / job.num_stages / fastest


def _gradients(job: Job, num_replicas: int) -> float:
    """Seconds of the gradients' all-reduce at least.

    Holders of a layer with k_i ranks send 1 / k_i of its bytes or more. If their ring crosses nodes it is no faster than a
    healthy link between nodes, and k_i is the largest group's size or less. If not, the k_i sum to n, the ranks of a node, at
    most, so sum 1 / k_i >= D^2 / n. Either way the sum over all layers and replicas is bounded, and the busiest of at most
    D P stages has the mean or more.
    """
    rates = job.rates
    if not rates.sync_bytes_per_layer or num_replicas == 1 or not rates.link_bytes_per_s:
        return 0.0
    inside_s = max(num_replicas / job.most_ranks, 1.0 / job.largest) / rates.node_bytes_per_s if rates.node_bytes_per_s else 0.0
    per_byte = min(1.0 / rates.link_bytes_per_s / job.largest, inside_s)
    per_stage = rates.sync_bytes_per_layer * job.work / job.num_stages
    return per_stage * 2 * (num_replicas - 1) / num_replicas * per_byte
