"""One replica as far as the cut of its layers matters: how long its pipeline takes for many cuts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lurcher.layout import Layout
from lurcher.model.critical_path import finish_times, makespans
from lurcher.model.order import Ints, Order, compile_schedule
from lurcher.model.price import ChunkSeconds, stage_chunk_s, stage_pace
from lurcher.model.rates import Rates
from lurcher.model.schedule import SPLIT_BACKWARD, live_microbatches, schedule_text
from lurcher.model.stage_table import Floats, stage_table
from lurcher.model.traffic import hop_s, network, tensor_s


@dataclass(frozen=True, eq=False)
class CutTimes:
    """A replica of P stages without its layers. Ends are the embedding and head, in layers; `caps` what memory allows per stage."""

    rates: Rates
    schedule: str
    microbatches: int
    num_chunks: int
    stretch: Floats  # (P,), see `price.stage_pace`
    tensor_layer_s: Floats  # (P,)
    ends: Floats  # (P,)
    hops: Floats  # (rows - 1,)
    caps: tuple[int, ...]

    def linear_s(self) -> tuple[Floats, Floats]:
        """Seconds per layer of each stage, and what it takes besides, for one micro-batch there and back; both (P,)."""
        without = self._whole_s(self.ends)
        launches_s = (self.num_chunks - 1) * self.rates.launch_s * (3 if self.schedule in SPLIT_BACKWARD else 2)
        return self._whole_s(self.ends + 1.0) - without, without + launches_s

    def _whole_s(self, layers: Floats) -> Floats:
        chunks = stage_chunk_s(self.rates, layers, self.stretch, self.schedule, self.tensor_layer_s)
        return chunks.forward_s + chunks.backward_s + (0.0 if chunks.weight_s is None else chunks.weight_s)

    def order(self) -> Order:
        """The compiled schedule, for `seconds`."""
        return compile_schedule(schedule_text(self.schedule, len(self.stretch), self.microbatches, self.num_chunks))

    def seconds(self, order: Order, sizes: Ints) -> Floats:
        """How long the pipeline takes with `sizes` layers per stage, (cuts, P) -> (cuts,)."""
        chunks = self._chunks(sizes)
        weight = None if chunks.weight_s is None else chunks.weight_s[..., None]
        return makespans(order, chunks.forward_s[..., None], chunks.backward_s[..., None], self.hops, weight)

    def forward_ends(self, order: Order, sizes: Sequence[int]) -> Floats:
        """When each row ends the forward pass of each micro-batch, (rows, m), in seconds from the start."""
        chunks = self._chunks(np.array([sizes], dtype=np.intp))
        weight = None if chunks.weight_s is None else chunks.weight_s[..., None]
        walked = finish_times(order, chunks.forward_s[..., None], chunks.backward_s[..., None], self.hops, weight)
        return np.asarray(walked.ends_s[0][order.rows("F")])

    def _chunks(self, sizes: Ints) -> ChunkSeconds:
        turn = np.arange(self.num_chunks)[:, None]
        rows = (sizes[:, None, :] // self.num_chunks + (turn < sizes[:, None, :] % self.num_chunks)).reshape(len(sizes), -1).astype(np.float64)
        rows[:, 0] += self.rates.embed_layers
        rows[:, -1] += self.rates.head_layers
        pace, tensor = np.tile(self.stretch, self.num_chunks), np.tile(self.tensor_layer_s, self.num_chunks)
        return stage_chunk_s(self.rates, rows, pace, self.schedule, tensor)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal keys, equal times."""
        arrays = (self.stretch, self.tensor_layer_s, self.ends, self.hops)
        return (self.microbatches, self.num_chunks, self.caps, *(array.tobytes() for array in arrays))


def cut_times(layout: Layout, rates: Rates, schedule: str) -> list[CutTimes]:
    """The layout's replicas as pipelines, in order. An empty or dead stage has an infinite pace."""
    table, net = stage_table(layout, rates), network(rates)
    pace, tensor = stage_pace(table, rates), tensor_s(net, table)
    largest = table.shares.max(axis=1)
    found = []
    for d, replica in enumerate(layout.replicas):
        stages = slice(table.first_stages[d], table.first_stages[d + 1])
        rows = table.row_stages[table.first_rows[d] : table.first_rows[d + 1]]
        num_stages = len(replica.stages)
        num_chunks = len(rows) // num_stages
        ends = np.zeros(num_stages)
        ends[0] += rates.embed_layers
        ends[-1] += rates.head_layers
        live = [live_microbatches(schedule, num_stages, s, replica.microbatches) if num_chunks == 1 else 0 for s in range(num_stages)]
        caps = _caps(rates, largest[stages], np.array(live), ends, layout.num_layers)
        hops = hop_s(net, table, rows[:-1], rows[1:])
        found.append(CutTimes(rates, schedule, replica.microbatches, num_chunks, pace[stages], tensor[stages], ends, hops, caps))
    return found


def _caps(rates: Rates, largest: Floats, live: Ints, ends: Floats, num_layers: int) -> tuple[int, ...]:
    """Most layers that each stage's fullest rank has memory for."""
    layer_bytes = largest * (rates.layer_bytes + rates.activation_bytes * live)
    if not rates.device_bytes or not layer_bytes.any():
        return (num_layers,) * len(largest)
    room = (rates.device_bytes - rates.staging_bytes) / np.maximum(layer_bytes, 1e-300) - ends
    return tuple(int(n) for n in np.clip(np.floor(room * (1 + 1e-12)), 0, num_layers))
