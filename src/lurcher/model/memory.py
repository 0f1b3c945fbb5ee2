"""Bytes that each stage needs: state, live activations and staging. Tells whether a plan fits before anything is moved."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.model.schedule import live_microbatches, parse, schedule_text
from lurcher.model.stage_table import Floats, StageTable


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes on the fullest rank of each stage, in order of (replica, stage). State is parameters, gradients and optimizer."""

    state_bytes: Floats
    activation_bytes: Floats
    staging_bytes: float
    device_bytes: float  # 0 is unlimited

    @property
    def total_bytes(self) -> Floats:
        """All of it, (S,); 0 for an empty stage."""
        return np.where(self.state_bytes + self.activation_bytes > 0, self.state_bytes + self.activation_bytes + self.staging_bytes, 0.0)

    @property
    def fits(self) -> bool:
        """Whether every stage fits on its devices."""
        return not self.device_bytes or bool((self.total_bytes <= self.device_bytes).all())


def stage_memory(layout: Layout, table: StageTable, rates: Rates, schedule: str, live_layers: Floats | None = None) -> StageMemory:
    """Bytes per stage; activations are cut by the ranks' shares (sequence parallel), as the state is.

    `live_layers` (S,) are the most (micro-batch, layer) activations that a stage holds at once, where the schedule's own
    count does not hold: with routes.
    """
    largest = table.shares.max(axis=1)
    layers = table.stage_layers * largest
    if live_layers is None:
        live_layers = peak_layers(layout, table, schedule) if rates.activation_bytes else np.zeros(len(largest))
    return StageMemory(rates.layer_bytes * layers, rates.activation_bytes * live_layers * largest, rates.staging_bytes, rates.device_bytes)


def peak_layers(layout: Layout, table: StageTable, schedule: str) -> Floats:
    """The most (micro-batch, layer) activations that each stage holds at once, (S,)."""
    found = [_peaks(schedule, _chunk_layers(table, d), replica.microbatches) for d, replica in enumerate(layout.replicas)]
    return np.concatenate(found)


def routed_limits(table: StageTable, rates: Rates, schedule: str, counts: Sequence[int]) -> Floats:
    """The most (micro-batch, layer) activations that a stage may hold where routes couple replicas, (S,): memory decides.

    Guests come when their own replica lets them, so a stage that waits for one needs others in hand: up to P micro-batches
    beyond what the schedule holds, as far as there is room. (4 stages, 16 micro-batches, 2 replicas, one stage dead, merged
    backward: the iteration takes 1.41 times as long without them, and no shorter with more than P.)
    """
    largest = np.maximum(table.shares.max(axis=1), 1e-300)
    room = np.full(len(largest), np.inf)
    if rates.device_bytes and rates.activation_bytes:
        state_bytes = rates.layer_bytes * table.stage_layers * largest
        room = (rates.device_bytes - rates.staging_bytes - state_bytes) / (rates.activation_bytes * largest)
    held: list[Floats] = []
    for d, count in enumerate(counts):
        layers = _chunk_layers(table, d)
        held.append(_peaks(schedule, layers, max(count, 2 * layers.shape[1])) + layers.shape[1] * layers.max(axis=0))
    found: Floats = np.minimum(room, np.concatenate(held))
    return found


def most_microbatches(layout: Layout, table: StageTable, rates: Rates, schedule: str, cap: int) -> list[int]:
    """The number, up to `cap`, of micro-batches that each replica has the memory for, as for every smaller number."""
    found: list[int] = []
    known: dict[bytes, int] = {}
    largest = table.shares.max(axis=1)
    for d in range(len(layout.replicas)):
        layers, part = _chunk_layers(table, d), largest[table.first_stages[d] : table.first_stages[d + 1]]
        room = rates.device_bytes - rates.staging_bytes - rates.layer_bytes * layers.sum(axis=0) * part
        key = layers.tobytes() + room.tobytes()
        if key not in known:
            known[key] = _most(schedule, layers, rates.activation_bytes * part, room, cap) if rates.device_bytes else cap
        found.append(known[key])
    return found


def _most(schedule: str, layers: Floats, layer_bytes: Floats, room: Floats, cap: int) -> int:
    def is_too_many(count: int) -> bool:
        return bool((layer_bytes * _peaks(schedule, layers, count) > room).any())

    if len(layers) == 1:
        return bisect_left(range(1, cap + 1), True, key=is_too_many)
    return next((count - 1 for count in range(1, cap + 1) if is_too_many(count)), cap)  # groups of other sizes hold more, or less


def _chunk_layers(table: StageTable, d: int) -> Floats:
    """Layers of a replica's chunks, (chunks per stage, stages)."""
    num_stages = table.first_stages[d + 1] - table.first_stages[d]
    return table.layers[table.first_rows[d] : table.first_rows[d + 1]].reshape(-1, num_stages)


def _peaks(schedule: str, layers: Floats, microbatches: int) -> Floats:
    """The most activations of a replica's stages, from their chunks' layers (chunks, stages)."""
    num_stages = layers.shape[1]
    if len(layers) == 1:
        live = np.array([live_microbatches(schedule, num_stages, s, microbatches) for s in range(num_stages)], dtype=np.float64)
        held: Floats = layers[0] * live
        return held
    texts = schedule_text(schedule, num_stages, microbatches, len(layers))
    return np.array([_peak(text, layers[:, s]) for s, text in enumerate(texts)])


def _peak(text: str, layers: Floats) -> float:
    """The most layers of activations that a stage's text holds at once; `layers` of each of its chunks."""
    held = peak = 0.0
    for action in parse(text):
        if action.kind == "F":
            held += float(layers[action.chunk])
            peak = max(peak, held)
        elif action.kind == "B":
            held -= float(layers[action.chunk])
    return peak
