"""What pipelines of one depth have in common, and how long many of them take: by a closed form, or by the walk.

The closed form is the largest of the paths (a) to (d) of `fill.py`. It equals the walk of 1F1B and GPipe where stages are
nearly balanced and micro-batches many, and is some per cent low elsewhere (1 % at P 8 and twice as many micro-batches, one
stage x1.6); so it guides a search, and the walk has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lurcher.model.critical_path import makespans, makespans_by_count
from lurcher.model.order import Order, compile_schedule
from lurcher.model.rates import Rates
from lurcher.model.schedule import SPLIT_BACKWARD, live_microbatches, schedule_text
from lurcher.plan.fill import UNPROVEN

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
MOST_WALKS = 4
"""Where pipelines differ in more numbers of micro-batches than this, one walk for all numbers is less work than one for each."""


@dataclass(frozen=True)
class Shop:
    """Pipelines of `num_stages` stages. A stage's time is that of one micro-batch, there and back."""

    rates: Rates
    schedule: str
    num_layers: int
    num_stages: int
    gradient_s: float = 0.0  # all-reduce of a whole layer by one rank, on healthy links
    orders: dict[int, Order] = field(default_factory=dict)  # compiled schedules by number of micro-batches

    @property
    def ends(self) -> Floats:
        """Embedding and head in layers, (P,)."""
        found = np.zeros(self.num_stages)
        found[0] += self.rates.embed_layers
        found[-1] += self.rates.head_layers
        return found

    def times(self, layer_s: Floats, layers: Ints) -> Floats:
        """Seconds of each stage with `layers` (..., P), on cells that take `layer_s` (..., P) for a layer."""
        return 2 * self.rates.launch_s + (layers + self.ends) * layer_s

    def after_s(self, layers: Ints, largest: Floats) -> Floats:
        """Seconds of gradients of the busiest stage, (...), for cells whose largest shares are `largest` (..., P)."""
        found: Floats = self.gradient_s * ((layers + self.ends) * largest).max(axis=-1)
        return found

    def room(self, largest: Floats, counts: Ints) -> Floats:
        """Most layers per stage that memory holds, (R, P), for cells whose largest share is `largest` in `counts` (R,) micro-batches."""
        rates, stages = self.rates, range(self.num_stages)
        if not rates.device_bytes:
            return np.full(largest.shape, float(self.num_layers))
        different, which = np.unique(counts, return_inverse=True)
        live = np.array([[live_microbatches(self.schedule, self.num_stages, s, m) for s in stages] for m in different.tolist()])
        each = largest * (rates.layer_bytes + rates.activation_bytes * live[which.ravel()])
        room = np.floor((rates.device_bytes - rates.staging_bytes) / np.maximum(each, 1e-300) * (1 + 1e-12) - self.ends)
        return np.clip(room, 0, self.num_layers)

    def closed_s(self, times: Floats, counts: Ints) -> Floats:
        """The closed form, without hops: pipelines of stage times (P, ...) and `counts` micro-batches, of a shape that fits to (...)."""
        m = np.asarray(counts, dtype=np.float64)
        total = times.sum(axis=0)
        part = 1.0 if self.schedule == "gpipe" else max(1.0 - self._forward_part, self._forward_part)
        found: Floats = total + (m - 1) * part * times.max(axis=0)
        upto = np.zeros_like(total)
        for s, time_s in enumerate(times if self.schedule != "gpipe" else ()):
            upto += time_s
            np.maximum(found, m * time_s + upto - time_s, out=found)
            ahead = m - self.num_stages + s
            np.maximum(found, np.where(ahead > 0, total + ahead * time_s + total - upto, 0.0), out=found)
        return found

    def floor_s(self, times: Floats, counts: Ints) -> Floats:
        """Seconds that the walk never stays below, arguments as for `closed_s`: the same, less what launches in both passes even out; or 0."""
        if self.schedule in UNPROVEN:
            return np.zeros(times.shape[1:])
        alike_s = self.rates.launch_s * abs(1 - 2 * self._forward_part)
        return self.closed_s(times, counts) - (np.asarray(counts, dtype=np.float64) - 1) * alike_s

    def walked_s(self, times: Floats, counts: Ints) -> Floats:
        """How long pipelines of stage times (P, R) and `counts` (R,) micro-batches take by the walk, without hops."""
        different = np.unique(counts).tolist()
        if len(different) > MOST_WALKS:
            return self.tables(times.T, np.zeros((1, self.num_stages - 1)), different[-1])[np.arange(len(counts)), counts]
        found = np.zeros(counts.shape)
        for m in different:
            lanes = counts == m
            forward, backward, weight = self._passes(times[:, lanes].T)
            found[lanes] = makespans(self.order(m), forward[..., None], backward[..., None], 0.0, None if weight is None else weight[..., None])
        return found

    def tables(self, times: Floats, hops: Floats, cap: int) -> Floats:
        """T(m) by the walk for m = 0 .. cap, (R, cap + 1), with `hops` (R, P - 1) between stages. Never falls."""
        forward, backward, weight = self._passes(times)
        found = makespans_by_count(self.schedule, forward, backward, cap, hops if self.num_stages > 1 else 0.0, self.order(cap), weight_s=weight)
        return np.maximum.accumulate(found, axis=1)

    def order(self, num_microbatches: int) -> Order:
        """The compiled schedule; kept."""
        if num_microbatches not in self.orders:
            self.orders[num_microbatches] = compile_schedule(schedule_text(self.schedule, self.num_stages, num_microbatches))
        return self.orders[num_microbatches]

    @property
    def _forward_part(self) -> float:
        return self.rates.forward_s / (self.rates.forward_s + self.rates.backward_s + self.rates.weight_s)

    def _passes(self, times: Floats) -> tuple[Floats, Floats, Floats | None]:
        """Forward, backward and weight times, as `price.stage_chunk_s` shares them out (but for all-reduces, which it does not cut by work)."""
        launch_s, rates = self.rates.launch_s, self.rates
        work = times - 2 * launch_s
        forward = launch_s + work * self._forward_part
        if self.schedule not in SPLIT_BACKWARD:
            return forward, launch_s + work * (1 - self._forward_part), None
        weight_part = (rates.weight_s or rates.backward_s / 2) / (rates.forward_s + rates.backward_s + rates.weight_s)
        return forward, launch_s + work * (1 - self._forward_part - weight_part), launch_s + work * weight_part
