"""What an iteration should take under any layout, with routes and empty stages: a walk of the very texts that its ranks run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.cost import CostModel, Rows
from lurcher.model.critical_path import Floats, makespans
from lurcher.model.program import joints
from lurcher.model.routes import compile_routed

NO_HOP_S = 0.0
"""Of a send between stages: in the live model, too, none that no chunk shows."""


class LayoutWalk:
    """A layout made ready for walking. Where all micro-batches stay at home it finds what `CostModel.expected_s` does."""

    def __init__(self, layout: Layout, schedule: str) -> None:
        self.layout = layout
        self._parts = [(coupled, compile_routed(coupled, texts)) for coupled, texts in joints(layout, schedule) if coupled.microbatches]

    def seconds(self, model: CostModel, workload: Rows, slowdown: Mapping[int, float] | None = None) -> float:
        """Seconds that an iteration of this workload should take by what the model has learned, each rank's work stretched by its `slowdown`."""
        alone: dict[tuple[int, int, int], tuple[Floats, ...]] = {}
        longest = 0.0
        for coupled, order in self._parts:
            members = np.array(coupled.microbatches, dtype=np.intp)
            times = []
            for piece in coupled.pieces:
                key = (*coupled.place(piece.stage), piece.end - piece.first)
                if key not in alone:
                    alone[key] = self._alone(model, workload, slowdown, *key)
                times.append(alone[key])
            forward_s, backward_s, *weight_s = (np.stack([phases[k][members] for phases in times]) for k in range(len(times[0])))
            longest = max(longest, float(makespans(order, forward_s, backward_s, NO_HOP_S, weight_s[0] if weight_s else None)))
        return longest + model.overhead_s

    def _alone(
        self, model: CostModel, workload: Rows, slowdown: Mapping[int, float] | None, replica: int, stage: int, num_layers: int
    ) -> tuple[Floats, ...]:
        """Times per phase of every micro-batch of the job on some layers of one stage: a layout of its own to the model."""
        found = self.layout.replicas[replica].stages[stage]
        lone = Stage(found.ranks, found.shares, (LayerRange(0, num_layers),))
        num_microbatches = self.layout.num_microbatches
        times = model.chunk_times(Layout(num_layers, num_microbatches, (Replica((lone,), num_microbatches),)), workload, slowdown)
        return tuple(phase[0] for phase in times[0])
