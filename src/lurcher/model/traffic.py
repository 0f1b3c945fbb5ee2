"""Seconds that transfers take: between stages, inside tensor-parallel groups, and of gradients between replicas.

A transfer is as fast as the slowest link it needs; transfers of different groups do not disturb each other. A rate of 0
bytes per second is "not counted": such a transfer takes its latency only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from lurcher.model.order import Ints
from lurcher.model.rates import LinkRate, Rates
from lurcher.model.stage_table import Bools, Floats, StageTable

_PAIR = 1 << 31
"""Nodes and ranks are below this, so two of them make one sortable key."""


@dataclass(frozen=True, eq=False)
class Network:
    """Link rates made ready to be looked up for many pairs of ranks at once."""

    rates: Rates
    nodes: Ints  # node of every rank up to the highest that `places` names
    pairs: tuple[tuple[Ints, Floats], tuple[Ints, Floats]]  # by node and by rank: sorted keys of slow pairs, their slowdowns
    cards: tuple[tuple[Ints, Floats], tuple[Ints, Floats]]  # likewise for links to every other

    def node(self, ranks: Ints) -> Ints:
        """The node of each rank."""
        found = ranks // self.rates.ranks_per_node
        known = ranks < len(self.nodes)
        found[known] = self.nodes[ranks[known]]
        return found

    def seconds_per_byte(self, a: Ints, b: Ints) -> Floats:
        """Of a transfer between ranks a and b, element by element; 0 from a rank to itself."""
        at, to = self.node(a), self.node(b)
        inside = at == to
        found = np.where(inside, _inverse(self.rates.node_bytes_per_s), _inverse(self.rates.link_bytes_per_s))
        found[a == b] = 0.0
        if not self.rates.links:
            return found
        slower = np.ones(found.shape)
        for (keys, factors), left, right in zip(self.pairs, (at, a), (to, b), strict=True):
            np.maximum(slower, _look_up(keys, factors, np.minimum(left, right) * _PAIR + np.maximum(left, right)), out=slower)
        for (keys, factors), left, right, crossing in zip(self.cards, (at, a), (to, b), (~inside, True), strict=True):
            both = np.maximum(_look_up(keys, factors, left), _look_up(keys, factors, right))
            np.maximum(slower, np.where(crossing, both, 1.0), out=slower)
        return found * slower


def network(rates: Rates) -> Network:
    """The links of `rates`, ready to be looked up."""
    nodes = np.arange(max(rates.places, default=-1) + 1) // rates.ranks_per_node
    nodes[list(rates.places)] = list(rates.places.values())
    by_kind = [[link for link in rates.links if link.kind == kind] for kind in ("node", "rank")]
    pairs = [_sorted([(min(k.a, k.b) * _PAIR + max(k.a, k.b), k) for k in links if k.b >= 0]) for links in by_kind]
    cards = [_sorted([(link.a, link) for link in links if link.b < 0]) for links in by_kind]
    return Network(rates, nodes, (pairs[0], pairs[1]), (cards[0], cards[1]))


def hop_s(net: Network, table: StageTable, senders: Ints, receivers: Ints) -> Floats:
    """Seconds of one micro-batch's activations (or gradients, the other way) from stage to stage, by their numbers in `table`.

    Rank j of the larger stage and rank j mod k of the smaller, of k ranks, exchange one copy. Nothing if both are one stage.
    """
    if not len(senders):
        return np.zeros(0)
    left, right, used = _partners(table, senders, receivers)
    slowest = np.where(used, net.seconds_per_byte(left, right), 0.0).max(axis=1)
    return np.where(senders == receivers, 0.0, net.rates.hop_s + net.rates.hop_bytes * slowest)


def tensor_s(net: Network, table: StageTable) -> Floats:
    """Seconds per layer and pass that each stage spends in its tensor-parallel all-reduces (ring: 2 (k - 1) / k of the bytes)."""
    if not net.rates.tp_bytes or table.ranks.shape[1] == 1:
        return np.zeros(len(table.size))
    slowest = np.where(table.own, net.seconds_per_byte(table.ranks, _next_in_ring(table)), 0.0).max(axis=1)
    parts = np.maximum(table.size, 1)
    found: Floats = net.rates.tp_bytes * 2 * (parts - 1) / parts * slowest
    return found


def sync_s(net: Network, table: StageTable) -> Floats:
    """Seconds that each stage needs to all-reduce its gradients over the replicas, in a ring in order of the replicas.

    A stage may hold layers with other mates than the rest of them, where replicas are cut differently: each run of
    layers with the same holders has its own ring, one after the other, and its slowest link sets its pace.
    """
    found = np.zeros(len(table.size))
    if not net.rates.sync_bytes_per_layer or len(table.first_rows) < 3:
        return found
    rings = [(layers, holders) for layers, holders in _runs(table) if len(holders) > 1]
    if not rings:
        return found
    senders = np.concatenate([holders for _, holders in rings])
    receivers = np.concatenate([np.append(holders[1:], holders[0]) for _, holders in rings])
    left, right, used = _partners(table, senders, receivers)
    lengths = np.array([len(holders) for _, holders in rings])
    edges = np.where(used, net.seconds_per_byte(left, right), 0.0).max(axis=1)
    slowest = np.maximum.reduceat(edges, np.cumsum(lengths) - lengths)
    passes = 2 * (lengths - 1) / lengths * slowest
    times = np.concatenate([layers for layers, _ in rings]) * np.repeat(passes, lengths)
    np.add.at(found, senders, times * net.rates.sync_bytes_per_layer * table.shares.max(axis=1)[senders])
    return found


def _runs(table: StageTable) -> list[tuple[Floats, Ints]]:
    """Runs of layers whose holders are the same throughout: the layers each holder counts for them, ends included, and the live holders."""
    firsts = np.array([chunk.first for chunk in table.ranges])
    cuts = [*sorted(set(firsts.tolist())), table.ranges[-1].end]
    lengths = np.array([len(chunk) for chunk in table.ranges], dtype=np.float64)
    found = []
    row = table.first_rows[:-1].copy()  # the row of each replica that holds the run's first layer
    for first, end in itertools.pairwise(cuts):
        following = np.minimum(row + 1, table.first_rows[1:] - 1)
        row = np.where(firsts[following] == first, following, row)
        live = row[table.size[table.row_stages[row]] > 0]
        found.append((table.layers[live] * (end - first) / lengths[live], table.row_stages[live]))
    return found


def _partners(table: StageTable, senders: Ints, receivers: Ints) -> tuple[Ints, Ints, Bools]:
    """Pairs of ranks that exchange something, (edges, K) each, and which of them are real."""
    used = np.arange(table.ranks.shape[1]) < np.maximum(table.size[senders], table.size[receivers])[:, None]
    return table.ranks[senders], table.ranks[receivers], used


def _next_in_ring(table: StageTable) -> Ints:
    turn = np.arange(1, table.ranks.shape[1] + 1) % np.maximum(table.size, 1)[:, None]
    return np.take_along_axis(table.ranks, turn, axis=1)


def _inverse(bytes_per_s: float) -> float:
    return 1.0 / bytes_per_s if bytes_per_s else 0.0


def _sorted(keyed: list[tuple[int, LinkRate]]) -> tuple[Ints, Floats]:
    """Keys in order, each once, with the largest slowdown given for it."""
    slowest: dict[int, float] = {}
    for key, link in keyed:
        slowest[key] = max(slowest.get(key, 0.0), link.slowdown)
    keys = sorted(slowest)
    return np.array(keys, dtype=np.intp), np.array([slowest[key] for key in keys])


def _look_up(keys: Ints, factors: Floats, wanted: Ints) -> Floats:
    """The factor of each wanted key, 1 where there is none."""
    if not len(keys):
        return np.ones(wanted.shape)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, factors[at], 1.0)
