"""The best layout of a small job by trying everything: which group stands where, its ranks and atoms, cuts, split. Shares no code with the planner."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.price import price_many
from lurcher.model.rates import Rates
from lurcher.plan.problem import Problem

ATOMS = 4
Group = tuple[tuple[int, ...], tuple[int, ...]]


def random_small(rng: random.Random) -> Problem:
    """Four nodes of two ranks: TP2 PP2 DP2, one to three ranks slow, at times one dead."""
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=rng.choice([3, 4, 5]), num_microbatches=rng.choice([4, 6, 8]))
    slow = {rank: rng.choice([1.3, 1.7, 2.5, 4.0]) for rank in rng.sample(range(8), rng.choice([1, 1, 2, 3]))}
    dead = tuple(rng.sample(range(8), 1)) if rng.random() < 0.3 else ()
    rates = Rates(
        forward_s=0.1,
        backward_s=0.2,
        launch_s=rng.choice([0.0, 0.01]),
        embed_layers=rng.choice([0.0, 0.3]),
        head_layers=rng.choice([0.0, 0.5]),
        tp_efficiency=(1.0, 0.95),
        hop_s=0.002,
        hop_bytes=1e6,
        sync_bytes_per_layer=rng.choice([0.0, 2e7]),
        optimizer_layer_s=0.01,
        overhead_s=0.02,
        link_bytes_per_s=1e9,
        node_bytes_per_s=5e9,
        ranks_per_node=2,
        slowdown=slow,
        dead=dead,
    )
    return Problem(layout=layout, rates=rates, schedule=rng.choice(["1f1b", "1f1b", "gpipe"]), causes=("compute",), num_atoms=ATOMS)


def true_best(problem: Problem) -> float:
    """Seconds per iteration of the best of all layouts with two replicas of two stages, a stage on one node."""
    layouts = list(_every_layout(problem))
    best = float("inf")
    for i in range(0, len(layouts), 4000):
        best = min(best, *(found.iteration_s for found in price_many(layouts[i : i + 4000], problem.rates, problem.schedule)))
    return best


def _every_layout(problem: Problem) -> Iterator[Layout]:
    layout, rates = problem.layout, problem.rates
    options = [_groups(stage.ranks, rates) for _, _, stage in layout.stages()]
    cuts = [(first, layout.num_layers - first) for first in range(1, layout.num_layers)]
    for order in itertools.permutations(range(4)):
        if order.index(0) >= 2:  # the replicas change places: the same
            continue
        for groups in itertools.product(*(options[i] for i in order)):
            for here, there in itertools.product(cuts, cuts):
                for count in range(layout.num_microbatches + 1):
                    replicas = (_replica(groups[:2], here, count), _replica(groups[2:], there, layout.num_microbatches - count))
                    used = {rank for ranks, _ in groups for rank in ranks}
                    yield Layout(layout.num_layers, layout.num_microbatches, replicas, tuple(sorted(set(layout.ranks) - used)))


def _replica(groups: tuple[Group, ...], sizes: tuple[int, int], count: int) -> Replica:
    (ranks, shares), (others, parts) = groups
    return Replica((Stage(ranks, shares, (LayerRange(0, sizes[0]),)), Stage(others, parts, (LayerRange(sizes[0], sum(sizes)),))), count)


def _groups(ranks: tuple[int, ...], rates: Rates) -> list[Group]:
    """The two fastest ways for a node's living ranks to share a layer; one where gradients cost nothing, for only they can make another better."""
    alive = [rank for rank in ranks if rank not in rates.dead]
    found: list[Group] = [((rank,), (ATOMS,)) for rank in alive]
    if len(alive) == 2:
        found += [(tuple(alive), (atoms, ATOMS - atoms)) for atoms in range(1, ATOMS)]

    def time(group: Group) -> float:
        return max(atoms * rates.slowdown.get(rank, 1.0) for rank, atoms in zip(*group, strict=True)) / rates.efficiency(len(group[0]))

    return sorted(found, key=time)[: 2 if rates.sync_bytes_per_layer else 1]
