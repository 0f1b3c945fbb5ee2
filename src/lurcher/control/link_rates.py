"""Bytes and links for the planner's rates: bytes as the ranks counted them, rates of links from how long their transfers took when healthy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from lurcher.control.transfers import Measured
from lurcher.layout import Layout
from lurcher.localize.links import Nodes
from lurcher.model.price import price
from lurcher.model.rates import LinkRate, Rates
from lurcher.records import Component


def with_links(rates: Rates, layout: Layout, schedule: str, measured: Sequence[Measured], slow: Mapping[Component, float], nodes: Nodes) -> Rates:
    """`rates` with nodes, bytes and links, `slow` ones by their slowdown; the healthy price of `layout` stays what it was.

    What the transfers of the healthy layout take was part of `overhead_s` so far. Links inside a node are not counted, unless one of them is slow.
    """
    across = [m for m in measured if any(nodes.joins_nodes(link) for link in nodes.around(m.ranks))]
    inside = [m for m in measured if any(link in slow for link in nodes.around(m.ranks)) and m not in across]
    found = msgspec.structs.replace(
        rates,
        places=nodes.places,
        hop_bytes=float(max((m.num_bytes for m in measured if m.kind == "pp"), default=0)),
        sync_bytes_per_layer=_sync_bytes_per_layer(layout, rates, measured),
        link_bytes_per_s=_bytes_per_s(across),
        node_bytes_per_s=_bytes_per_s(inside),
    )
    overhead_s = max(0.0, rates.overhead_s - links_s(layout, found, schedule))
    links = tuple(LinkRate(*nodes.ends(link), slowdown, "node" if nodes.joins_nodes(link) else "rank") for link, slowdown in slow.items())
    return msgspec.structs.replace(found, overhead_s=overhead_s, links=links)


def links_s(layout: Layout, rates: Rates, schedule: str) -> float:
    """What the links cost an iteration of `layout`: its price less that without them."""
    free = msgspec.structs.replace(rates, link_bytes_per_s=0.0, node_bytes_per_s=0.0, links=())
    return price(layout, rates, schedule).iteration_s - price(layout, free, schedule).iteration_s


def _bytes_per_s(measured: Sequence[Measured]) -> float:
    """By what sums most, for its time is least the calls' own; 0 for unknown."""
    kinds = {m.kind for m in measured}
    best = [m for m in measured if m.kind == ("dp" if "dp" in kinds else "pp")]
    return median(_passed(m) / m.seconds for m in best) if best else 0.0


def _passed(measured: Measured) -> float:
    """Bytes that go over each link, one way: of a ring of k ranks, 2 (k - 1) / k of what is summed."""
    size = len(measured.ranks)
    return measured.num_bytes if measured.kind == "pp" else measured.num_bytes * 2 * (size - 1) / size


def _sync_bytes_per_layer(layout: Layout, rates: Rates, measured: Sequence[Measured]) -> float:
    """Such that the largest sum of the healthy layout is exact: embedding and head count as many bytes a layer's worth of work as layers do."""
    most = max((m.num_bytes for m in measured if m.kind == "dp"), default=0)
    parts = [0.0]
    for replica in layout.replicas:
        for s, stage in enumerate(replica.stages):
            layers = stage.num_layers + rates.embed_layers * (s == 0) + rates.head_layers * (s == len(replica.stages) - 1)
            parts += [layers * max(stage.shares) / sum(stage.shares)] if stage.ranks else []
    return most / max(parts) if max(parts) > 0 else 0.0
