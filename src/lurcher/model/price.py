"""What an iteration costs under a layout, from given rates. One price for every planner: a plan is what prices lower.

The replicas' pipelines run side by side, each a walk of its schedule; then come the gradients' all-reduce, the optimizer and
what else an iteration takes. Replicas that are alike are walked once, and many layouts in one walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.model.list_schedule import Durations, ListSchedule, list_schedule
from lurcher.model.memory import StageMemory, most_microbatches, peak_layers, routed_limits, stage_memory
from lurcher.model.rates import Rates
from lurcher.model.routes import Coupled, coupled_replicas
from lurcher.model.schedule import SPLIT_BACKWARD, schedule_text
from lurcher.model.stage_table import Floats, StageTable, efficiencies, parts_of, slowdowns, table_of
from lurcher.model.traffic import Network, hop_s, network, sync_s, tensor_s
from lurcher.model.walks import Pipeline, pipeline_seconds, pipeline_tables


@dataclass(frozen=True, eq=False)
class Price:
    """What one iteration costs, in seconds; infinite where a dead rank has work. `stages` are (replica, stage)."""

    iteration_s: float
    pipeline_s: tuple[float, ...]  # per replica
    sync_s: float
    optimizer_s: float
    overhead_s: float
    worst_stage: tuple[int, int]  # the busiest stage of the slowest replica
    memory: StageMemory

    @property
    def fits(self) -> bool:
        """Whether every stage's memory fits on its devices."""
        return self.memory.fits


class ChunkSeconds(NamedTuple):
    """Seconds of a chunk's forward and backward pass and, if the schedule has it, weight gradient; arrays of one shape."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats | None


def stage_pace(table: StageTable, rates: Rates) -> Floats:
    """Time of a layer on each stage, relative to one healthy device that holds all of it: max over ranks of slowdown * share, over efficiency.

    (S,); infinity for an empty stage or one with a dead rank.
    """
    slowest = np.where(table.own, slowdowns(rates, table.ranks), 0.0) * table.shares
    return np.where(table.size > 0, slowest.max(axis=1) / efficiencies(rates, table.size), np.inf)


def stage_chunk_s(rates: Rates, layers: Floats, pace: Floats, schedule: str = "1f1b", tensor_layer_s: Floats | float = 0.0) -> ChunkSeconds:
    """Seconds of chunks of `layers` (ends counted in) on stages of `pace`, element by element.

    `tensor_layer_s` is what the stage's ranks all-reduce per layer and pass. Backward is merged, unless the schedule has
    W actions: then it is split as the rates say, or in halves where they do not (arXiv 2401.10241 finds B and W about equal).
    """
    work, together = layers * pace, layers * tensor_layer_s
    forward = rates.launch_s + rates.forward_s * work + together
    if schedule not in SPLIT_BACKWARD:
        return ChunkSeconds(forward, rates.launch_s + (rates.backward_s + rates.weight_s) * work + together, None)
    weight_s = rates.weight_s or rates.backward_s / 2
    backward_s = rates.backward_s if rates.weight_s else rates.backward_s / 2
    return ChunkSeconds(forward, rates.launch_s + backward_s * work + together, rates.launch_s + weight_s * work)


def price(layout: Layout, rates: Rates, schedule: str = "1f1b") -> Price:
    """The price of one layout; see `price_many`."""
    return price_many([layout], rates, schedule)[0]


def price_many(layouts: Sequence[Layout], rates: Rates, schedule: str = "1f1b") -> tuple[Price, ...]:
    """The price of each layout, out of as few walks as there are shapes of pipelines among all their replicas.

    Replicas that routes couple are run together, by the list schedule that they would get. Raises UserError for an unknown
    schedule, or one that cannot run the layout's chunks.
    """
    net = network(rates)
    alike: dict[tuple[int, ...], Layout] = {}  # layouts that share their stages' values differ in micro-batches and routes only
    keys = [tuple(id(replica.stages) for replica in layout.replicas) for layout in layouts]
    for key, layout in zip(keys, layouts, strict=True):
        alike.setdefault(key, layout)
    known = dict(zip(alike, _works(list(alike.values()), net, schedule), strict=True))
    works = [known[key] for key in keys]
    pipelines = [pipeline for work in works for pipeline in work.pipelines]
    walked = iter(pipeline_seconds(schedule, pipelines, [replica.microbatches for layout in layouts for replica in layout.replicas]))
    return tuple(_price(layout, work, net, schedule, [next(walked) for _ in layout.replicas]) for layout, work in zip(layouts, works, strict=True))


def replica_tables(layout: Layout, rates: Rates, cap: int, schedule: str = "1f1b") -> tuple[Floats, ...]:
    """Per replica T_i(m), seconds of its pipeline for m = 0 .. cap micro-batches; shorter where its memory ends earlier.

    Never falls with m, as `plan.split.min_max_split` wants it. Routes are left out of account: they name micro-batches.
    """
    return replica_tables_many([layout], rates, cap, schedule)[0]


def replica_tables_many(layouts: Sequence[Layout], rates: Rates, cap: int, schedule: str = "1f1b") -> tuple[tuple[Floats, ...], ...]:
    """`replica_tables` of each layout, out of one walk per shape of pipeline."""
    net = network(rates)
    works = _works(layouts, net, schedule)
    tables = iter(pipeline_tables(schedule, [pipeline for work in works for pipeline in work.pipelines], cap))
    caps = [most_microbatches(layout, work.table, rates, schedule, cap) for layout, work in zip(layouts, works, strict=True)]
    return tuple(tuple(next(tables)[: most + 1] for most in each) for each in caps)


def routed_texts(layout: Layout, rates: Rates, schedule: str = "1f1b") -> dict[tuple[int, int], str]:
    """The texts of the replicas that routes couple, by (replica, stage): what `price` assumes is what runs. See `model/routes.py`."""
    net = network(rates)
    work = _works([layout], net, schedule)[0]
    found: dict[tuple[int, int], str] = {}
    for coupled in coupled_replicas(layout, work.table):
        texts = _run(layout, work, net, schedule, coupled).texts
        found |= {coupled.place(stage): text for stage, text in zip(coupled.stages, texts, strict=True)}
    return found


class _Work(NamedTuple):
    """What a layout's price depends on beside micro-batches and routes."""

    table: StageTable
    stretch: Floats  # per stage, its `stage_pace`
    tensor_layer_s: Floats
    pipelines: tuple[Pipeline, ...]
    busy_s: Floats  # per stage, one micro-batch
    sync_s: float
    optimizer_s: float


def _works(layouts: Sequence[Layout], net: Network, schedule: str) -> list[_Work]:
    """Of each layout, the stages of all of them side by side."""
    if not layouts:
        return []
    rates = net.rates
    every = table_of([replica.stages for layout in layouts for replica in layout.replicas], rates)
    tables = list(parts_of(every, [len(layout.replicas) for layout in layouts]))
    for layout, table in zip(layouts, tables, strict=True):
        _check_chunks(layout, table, schedule)
    stages, pace, together = every.row_stages, stage_pace(every, rates), tensor_s(net, every)
    chunks = stage_chunk_s(rates, every.layers, pace[stages], schedule, together[stages])
    parts = [part for part in chunks if part is not None]
    hops = np.append(hop_s(net, every, stages[:-1], stages[1:]), 0.0)
    busy_s: Floats = np.bincount(stages, np.sum(parts, axis=0), len(every.size)).astype(np.float64)
    stepped = np.where(every.size > 0, every.stage_layers * pace, 0.0)  # an empty stage has no state
    found, row, first = [], 0, 0
    for layout, table in zip(layouts, tables, strict=True):
        pipelines = []
        for replica, begin, end in zip(layout.replicas, (row + table.first_rows).tolist(), (row + table.first_rows[1:]).tolist(), strict=False):
            seconds = np.concatenate([*(part[begin:end] for part in parts), hops[begin : end - 1]])
            pipelines.append(Pipeline(len(replica.stages), (end - begin) // len(replica.stages), seconds))
        own = slice(first, first + len(table.size))
        optimizer_s = rates.optimizer_layer_s * float(stepped[own].max()) if rates.optimizer_layer_s else 0.0
        found.append(_Work(table, pace[own], together[own], tuple(pipelines), busy_s[own], float(sync_s(net, table).max()), optimizer_s))
        row, first = row + len(table.layers), own.stop
    return found


def _check_chunks(layout: Layout, table: StageTable, schedule: str) -> None:
    """Chunk c of stage s of P must be the pipeline's c * P + s'th, or the texts do not say what runs where."""
    schedule_text(schedule, 1, 0)  # refuse an unknown name here
    if len(table.layers) == len(table.size):
        return
    for d, replica in enumerate(layout.replicas):
        num_stages, num_rows = len(replica.stages), int(table.first_rows[d + 1] - table.first_rows[d])
        held = table.row_stages[table.first_rows[d] : table.first_rows[d + 1]] - table.first_stages[d]
        if num_rows > num_stages and (schedule != "interleaved" or num_rows % num_stages or (held != np.arange(num_rows) % num_stages).any()):
            raise UserError(
                f"schedule {schedule!r} cannot run replica {d}, whose {num_stages} stages hold {num_rows} chunks: give each stage one,"
                " or choose 'interleaved' and give every stage as many, dealt out in turn"
            )


def _price(layout: Layout, work: _Work, net: Network, schedule: str, pipeline_s: list[float]) -> Price:
    table, rates = work.table, net.rates
    live_layers = None
    for coupled in coupled_replicas(layout, table) if layout.routes else ():
        run = _run(layout, work, net, schedule, coupled)
        live_layers = peak_layers(layout, table, schedule) if live_layers is None else live_layers
        live_layers[list(coupled.stages)] = run.live_layers
        for d in coupled.replicas:
            pipeline_s[d] = max(end_s for stage, end_s in zip(coupled.stages, run.ends_s, strict=True) if coupled.place(stage)[0] == d)
    slowest = int(np.argmax(pipeline_s))
    first, end = table.first_stages[slowest], table.first_stages[slowest + 1]
    busy_s = np.where(table.size > 0, work.busy_s, 0.0)[first:end]
    total_s = pipeline_s[slowest] + work.sync_s + work.optimizer_s + rates.overhead_s
    if rates.dead and np.isin(table.ranks[table.own], rates.dead).any():
        total_s = math.inf
    memory = stage_memory(layout, table, rates, schedule, live_layers)
    return Price(total_s, tuple(pipeline_s), work.sync_s, work.optimizer_s, rates.overhead_s, (slowest, int(np.argmax(busy_s))), memory)


def _run(layout: Layout, work: _Work, net: Network, schedule: str, coupled: Coupled) -> ListSchedule:
    """The coupled replicas' list schedule at these rates."""
    stages = np.array([piece.stage for piece in coupled.pieces], dtype=np.intp)
    layers = np.array([float(piece.end - piece.first) for piece in coupled.pieces])
    layers += net.rates.embed_layers * np.array([piece.first == 0 for piece in coupled.pieces])
    layers += net.rates.head_layers * np.array([piece.end == layout.num_layers for piece in coupled.pieces])
    chunks = stage_chunk_s(net.rates, layers, work.stretch[stages], schedule, work.tensor_layer_s[stages])
    borders = np.array(coupled.borders, dtype=np.intp).reshape(-1, 2)
    hops = hop_s(net, work.table, borders[:, 0], borders[:, 1])
    durations = Durations([part.tolist() for part in chunks if part is not None], hops.tolist(), layers.tolist())
    limits = routed_limits(work.table, net.rates, schedule, layout.split)[list(coupled.stages)]
    return list_schedule(coupled, work.table, schedule, durations, limits.tolist())
