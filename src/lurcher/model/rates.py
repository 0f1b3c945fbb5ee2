"""What the planner knows of devices and links, as one value. The live predictor (`model/cost.py`) learns such figures; here they are given.

Everything is of AVERAGE micro-batches. A figure of 0 is "not counted", so that a problem may say as little as it knows.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from lurcher.errors import UserError


class LinkRate(msgspec.Struct, frozen=True, order=True):
    """A slow link, both ways: between the nodes (or, by `kind`, the ranks) `a` and `b`, `slowdown` times slower than healthy.

    `b` -1 is every other one: the network card of node (or rank) `a`. Nodes with a == b is the fabric inside that node.
    Where several apply to a transfer, the slowest counts.
    """

    a: int
    b: int
    slowdown: float
    kind: Literal["node", "rank"] = "node"

    def __post_init__(self) -> None:
        if self.a < 0 or self.b < -1 or (self.kind == "rank" and self.a == self.b):
            raise UserError(f"the link {self.kind} {self.a} to {self.b} does not exist; give two {self.kind}s, or -1 as the second for every other")
        _check_slowdown(f"the link {self.kind} {self.a} to {self.b}", self.slowdown)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes, for one micro-batch of average length.

    A chunk of L layers on a stage takes launch_s + L * forward_s * pace, where pace is the largest slowdown * share /
    efficiency of its ranks (see `price.stage_pace`). A slow device stretches its work, not the launch, which is the host's.
    """

    forward_s: float
    """Forward pass of ONE layer on one healthy device that holds all of it."""
    backward_s: float
    """Its backward pass: the merged one if `weight_s` is 0, else the activation gradient only."""
    weight_s: float = 0.0
    """Its weight gradient, where it is known apart. A schedule without W actions adds it to the backward pass."""
    embed_layers: float = 0.0
    """The embedding, in layers: added to the first stage's work, state, gradients and activations."""
    head_layers: float = 0.0
    """The head and loss, in layers: added to the last stage."""
    launch_s: float = 0.0
    """Fixed cost of a chunk."""
    tp_efficiency: tuple[float, ...] = (1.0,)
    """[k - 1]: speed of each rank of a group of k, relative to alone; beyond the end the last entry. Without collectives if `tp_bytes` is given."""
    tp_bytes: float = 0.0
    """Bytes that a tensor-parallel group all-reduces per layer and pass (forward or backward)."""
    hop_s: float = 0.0
    """Latency of a transfer between stages."""
    hop_bytes: float = 0.0
    """Bytes that each receiving rank gets of one micro-batch at a stage border, either way."""
    sync_bytes_per_layer: float = 0.0
    """Gradient bytes of one layer, all-reduced over the replicas once an iteration, cut by the ranks' shares."""
    optimizer_layer_s: float = 0.0
    """Optimizer step of one layer on one healthy device that holds all of it."""
    overhead_s: float = 0.0
    """What an iteration takes beside all this."""
    link_bytes_per_s: float = 0.0
    """Between two ranks of different nodes, one way, healthy."""
    node_bytes_per_s: float = 0.0
    """Between two ranks of one node, one way, healthy."""
    ranks_per_node: int = 8
    places: dict[int, int] = msgspec.field(default_factory=dict)
    """Node of a rank, where it is not rank // ranks_per_node."""
    slowdown: dict[int, float] = msgspec.field(default_factory=dict)
    """Per rank; 1.0, healthy, where absent."""
    dead: tuple[int, ...] = ()
    """Ranks that do no work any more."""
    links: tuple[LinkRate, ...] = ()
    """Links that are slow."""
    device_bytes: float = 0.0
    """Memory of a device; 0 is unlimited."""
    layer_bytes: float = 0.0
    """Parameters, gradients and optimizer state of one layer."""
    activation_bytes: float = 0.0
    """What one micro-batch keeps of one layer from its forward to its backward (or weight) pass, over all ranks of the stage."""
    staging_bytes: float = 0.0
    """Kept free on every device for state that arrives in a change of layout."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
                raise UserError(f"rates.{name} is {value}; it must be a finite number of 0 or more")
        if self.forward_s <= 0 or self.backward_s <= 0:
            raise UserError(f"rates.forward_s is {self.forward_s} and backward_s {self.backward_s}; both must be above 0: a layer takes time")
        if self.ranks_per_node < 1:
            raise UserError(f"rates.ranks_per_node is {self.ranks_per_node}; 1 is the least")
        if not self.tp_efficiency or not all(0 < factor <= 1.5 for factor in self.tp_efficiency):
            raise UserError(f"rates.tp_efficiency is {self.tp_efficiency}; give one factor above 0 per degree, 1.0 being no loss")
        for rank, factor in self.slowdown.items():
            _check_slowdown(f"rank {rank}", factor)

    def node(self, rank: int) -> int:
        """The node that a rank is on."""
        return self.places.get(rank, rank // self.ranks_per_node)

    def efficiency(self, tp_size: int) -> float:
        """Speed of each rank of a tensor-parallel group, relative to alone."""
        return self.tp_efficiency[min(tp_size, len(self.tp_efficiency)) - 1]

    def rank_slowdown(self, rank: int) -> float:
        """1.0 for a healthy rank, infinity for a dead one."""
        return math.inf if rank in self.dead else self.slowdown.get(rank, 1.0)


def _check_slowdown(what: str, factor: float) -> None:
    if not (math.isfinite(factor) and factor > 0):
        raise UserError(f"the slowdown of {what} is {factor}; it is observed / healthy time: 1.0 is healthy, and what is dead is listed in `dead`")
