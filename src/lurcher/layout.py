"""Who computes what: replicas, stages, shares, micro-batches, routes. One immutable value per generation.

A layout says for every (micro-batch, layer) which ranks execute it. The runtime builds its groups and its
pipeline from it, the planner proposes new ones, the report draws it. It knows nothing of torch or of time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from lurcher.errors import UserError


class LayerRange(msgspec.Struct, frozen=True, order=True):
    """Layers `first` .. `end - 1`, numbered over the whole model."""

    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and self.first <= layer < self.end


class Stage(msgspec.Struct, frozen=True):
    """The ranks that together hold some layers of one replica.

    `shares` are the ranks' relative parts of the stage's atoms (KV groups, FFN blocks, vocabulary blocks): (1, 1) is
    plain TP2, (2, 1) gives the first rank twice as much. A stage without ranks is empty: all its work is routed.
    `chunks` holds one layer range, or several when the schedule is interleaved.
    """

    ranks: tuple[int, ...]
    shares: tuple[int, ...]
    chunks: tuple[LayerRange, ...]

    @property
    def tp_size(self) -> int:
        """Tensor-parallel degree: the number of ranks."""
        return len(self.ranks)

    @property
    def num_layers(self) -> int:
        """Layers held by this stage, over all its chunks."""
        return sum(len(chunk) for chunk in self.chunks)


class Replica(msgspec.Struct, frozen=True):
    """One data-parallel copy of the model: its stages, in pipeline order, and how many micro-batches it runs."""

    stages: tuple[Stage, ...]
    microbatches: int


class Route(msgspec.Struct, frozen=True, order=True):
    """Micro-batch `microbatch` (global index) runs layers `chunk` on `stage` of `replica` instead of at home."""

    microbatch: int
    chunk: LayerRange
    replica: int
    stage: int


class Group(msgspec.Struct, frozen=True, order=True):
    """Ranks that communicate together; `kind` is tp, dp, pp, world or other."""

    id: int
    kind: str
    ranks: tuple[int, ...]


class Position(NamedTuple):
    """Where a rank sits: replica (dp), stage (pp) and index inside the stage (tp)."""

    dp: int
    pp: int
    tp: int


class Layout(msgspec.Struct, frozen=True):
    """The whole job's layout. `num_microbatches` is the GLOBAL number per iteration; see `Replica.microbatches`.

    Checked when made: no rank twice; every replica holds every layer once and in order; micro-batches sum up;
    an empty stage has all its micro-batches routed; a route leads to a live stage of another replica that holds the range.

    Where routes couple replicas no fixed pattern says in which order their stages work. `order` may: the text of every stage in order of
    (replica, stage), as in `model/routes.py`, "" for replicas without routes. Without it `model/program.py` derives one.
    """

    num_layers: int
    num_microbatches: int
    replicas: tuple[Replica, ...]
    standby: tuple[int, ...] = ()
    routes: tuple[Route, ...] = ()
    generation: int = 0
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def uniform(cls, *, tp: int, pp: int, dp: int, num_layers: int, num_microbatches: int) -> Layout:
        """The usual grid: `rank = (dp * PP + stage) * TP + tp`, layers and micro-batches as even as they go.

        Left-over layers go to the first stages, left-over micro-batches to the first replicas.
        """
        for name, value in (("tp", tp), ("pp", pp), ("dp", dp)):
            if value < 1:
                raise UserError(f"layout.{name} is {value}; it must be 1 or more")
        if num_layers < pp:
            raise UserError(f"layout.pp is {pp} but the model has {num_layers} layers; every stage needs one: lower pp or raise model.num_layers")
        if num_microbatches < dp:
            raise UserError(
                f"layout.num_microbatches is {num_microbatches} for {dp} replicas; it counts all replicas together and each needs one: raise it to {dp} or more"
            )
        cuts = _even_cuts(num_layers, pp)
        counts = [end - first for first, end in _even_cuts(num_microbatches, dp)]
        replicas = []
        for d in range(dp):
            stages = tuple(Stage(tuple((d * pp + s) * tp + t for t in range(tp)), (1,) * tp, (LayerRange(*cuts[s]),)) for s in range(pp))
            replicas.append(Replica(stages, counts[d]))
        return cls(num_layers, num_microbatches, tuple(replicas))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All working ranks, sorted; standby ranks are not among them."""
        return tuple(sorted(r for _, _, stage in self.stages() for r in stage.ranks))

    @property
    def members(self) -> tuple[int, ...]:
        """Working and standby ranks, sorted: every process of the job."""
        return tuple(sorted((*self.ranks, *self.standby)))

    @property
    def world_size(self) -> int:
        """Number of working and standby ranks."""
        return len(self.ranks) + len(self.standby)

    @property
    def split(self) -> tuple[int, ...]:
        """Micro-batches per replica."""
        return tuple(replica.microbatches for replica in self.replicas)

    def stages(self) -> Iterator[tuple[int, int, Stage]]:
        """Every (replica index, stage index, stage)."""
        for d, replica in enumerate(self.replicas):
            for s, stage in enumerate(replica.stages):
                yield d, s, stage

    def rank(self, *, dp: int, pp: int, tp: int) -> int:
        """The rank at a position."""
        return self.replicas[dp].stages[pp].ranks[tp]

    def position(self, rank: int) -> Position:
        """The position of a working rank; KeyError for a standby or unknown one."""
        for d, s, stage in self.stages():
            if rank in stage.ranks:
                return Position(d, s, stage.ranks.index(rank))
        raise KeyError(f"rank {rank} holds no stage in generation {self.generation}")

    def microbatches_of(self, replica: int) -> range:
        """Global indices of the micro-batches whose home is `replica`."""
        first = sum(self.split[:replica])
        return range(first, first + self.split[replica])

    def stage_of_layer(self, replica: int, layer: int) -> int:
        """Index of the stage of `replica` that holds `layer`."""
        for s, stage in enumerate(self.replicas[replica].stages):
            if any(layer in chunk for chunk in stage.chunks):
                return s
        raise KeyError(f"no stage of replica {replica} holds layer {layer}")

    def executor(self, microbatch: int, layer: int) -> tuple[int, int]:
        """The (replica, stage) that executes `layer` for the global micro-batch, routes included."""
        for route in self.routes:
            if route.microbatch == microbatch and layer in route.chunk:
                return route.replica, route.stage
        home = next(d for d in range(len(self.replicas)) if microbatch in self.microbatches_of(d))
        return home, self.stage_of_layer(home, layer)

    def groups(self) -> tuple[Group, ...]:
        """World, tensor groups, pipeline chains and like ranks over replicas, numbered in that order.

        The pipeline group of a replica is the union of its stages; the data group of a position exists where at
        least two replicas have that (stage, tp). Owner sets of gradients, which may be finer, are the runtime's.
        """
        found: list[tuple[str, tuple[int, ...]]] = [("world", self.ranks)]
        found += [("tp", stage.ranks) for _, _, stage in self.stages() if stage.tp_size > 1]
        for replica in self.replicas:
            members = tuple(sorted(r for stage in replica.stages for r in stage.ranks))
            if len(replica.stages) > 1:
                found.append(("pp", members))
        cohorts: dict[tuple[int, int], list[int]] = {}
        for _, s, stage in self.stages():
            for t, r in enumerate(stage.ranks):
                cohorts.setdefault((s, t), []).append(r)
        found += [("dp", tuple(sorted(members))) for members in cohorts.values() if len(members) > 1]
        return tuple(Group(i, kind, members) for i, (kind, members) in enumerate(found))

    def in_order(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Working ranks in order of (replica, stage, index): the order in which what they sum goes round among them."""
        wanted = set(ranks)
        return tuple(r for _, _, stage in self.stages() for r in stage.ranks if r in wanted)

    def with_split(self, split: Sequence[int]) -> Layout:
        """The next generation with other micro-batch counts per replica; routes are dropped, for they name micro-batches."""
        replicas = tuple(Replica(r.stages, m) for r, m in zip(self.replicas, split, strict=True))
        return Layout(self.num_layers, self.num_microbatches, replicas, self.standby, (), self.generation + 1)

    def digest(self) -> str:
        """Short hash of the whole value: equal on all ranks that hold the same plan."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def apportion(num_atoms: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Cut `num_atoms` into whole parts proportional to `shares` (largest remainder, ties to the earlier rank)."""
    total = sum(shares)
    floors = [num_atoms * share // total for share in shares]
    rests = sorted(range(len(shares)), key=lambda i: (-(num_atoms * shares[i] % total), i))
    for i in rests[: num_atoms - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def _even_cuts(count: int, parts: int) -> list[tuple[int, int]]:
    sizes = apportion(count, (1,) * parts)
    starts = [sum(sizes[:i]) for i in range(parts)]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _check(layout: Layout) -> None:
    if not layout.replicas:
        raise UserError("a layout needs at least one replica")
    if layout.num_layers < 1:
        raise UserError(f"a layout needs at least one layer, not {layout.num_layers}")
    seen = Counter([r for _, _, stage in layout.stages() for r in stage.ranks] + list(layout.standby))
    for r, times in seen.items():
        if times > 1 or r < 0:
            raise UserError(f"rank {r} stands {times} times in the layout; each rank has one place, numbered from 0")
    for d, s, stage in layout.stages():
        where = f"replica {d} stage {s}"
        if len(stage.shares) != len(stage.ranks) or any(share < 1 for share in stage.shares):
            raise UserError(f"{where}: shares {stage.shares} must give each of its {len(stage.ranks)} ranks a whole number of 1 or more")
    for d, replica in enumerate(layout.replicas):
        _check_layers(layout, d)
        if replica.microbatches < 0:
            raise UserError(f"replica {d} has {replica.microbatches} micro-batches; 0 is the least")
    if sum(layout.split) != layout.num_microbatches:
        raise UserError(f"micro-batches {layout.split} sum to {sum(layout.split)}, but the job runs {layout.num_microbatches} per iteration")
    _check_routes(layout)


def _check_layers(layout: Layout, d: int) -> None:
    chunks = sorted(chunk for stage in layout.replicas[d].stages for chunk in stage.chunks)
    layer = 0
    for chunk in chunks:
        if chunk.first != layer or chunk.end <= chunk.first:
            raise UserError(f"replica {d}: layers {chunk.first}..{chunk.end - 1} do not follow layer {layer - 1}; every layer is held once")
        layer = chunk.end
    if layer != layout.num_layers:
        raise UserError(f"replica {d} holds layers 0..{layer - 1} of {layout.num_layers}; every layer is held once")
    one_each = [stage.chunks[0] for stage in layout.replicas[d].stages if len(stage.chunks) == 1]
    if len(one_each) == len(layout.replicas[d].stages) and one_each != chunks:
        raise UserError(f"replica {d}: stages must hold their layers in pipeline order")


def _check_routes(layout: Layout) -> None:
    num_stages = sum(len(replica.stages) for replica in layout.replicas)
    if len(layout.order) not in (0, num_stages):
        raise UserError(f"the layout has an order of work for {len(layout.order)} stages, but {num_stages} stages; give one text a stage, or none")
    routed: dict[int, list[LayerRange]] = {}
    for route in layout.routes:
        if not 0 <= route.microbatch < layout.num_microbatches:
            raise UserError(f"route of micro-batch {route.microbatch}: the job has 0..{layout.num_microbatches - 1}")
        home = next(d for d in range(len(layout.replicas)) if route.microbatch in layout.microbatches_of(d))
        if not 0 <= route.replica < len(layout.replicas) or not 0 <= route.stage < len(layout.replicas[route.replica].stages):
            raise UserError(f"route of micro-batch {route.microbatch} leads to replica {route.replica} stage {route.stage}, which does not exist")
        target = layout.replicas[route.replica].stages[route.stage]
        if route.replica == home or not target.ranks or not any(_holds(chunk, route.chunk) for chunk in target.chunks):
            raise UserError(
                f"route of micro-batch {route.microbatch}, layers {route.chunk.first}..{route.chunk.end - 1}, must lead to a live stage"
                f" of another replica that holds them, not to replica {route.replica} stage {route.stage}"
            )
        for other in routed.setdefault(route.microbatch, []):
            if other.first < route.chunk.end and route.chunk.first < other.end:
                raise UserError(f"micro-batch {route.microbatch} is routed twice for layers {route.chunk.first}..{route.chunk.end - 1}")
        routed[route.microbatch].append(route.chunk)
    for d, s, stage in layout.stages():
        if stage.ranks:
            continue
        for m in layout.microbatches_of(d):
            for chunk in stage.chunks:
                covered = sum(max(0, min(r.end, chunk.end) - max(r.first, chunk.first)) for r in routed.get(m, []))
                if covered != len(chunk):
                    raise UserError(f"replica {d} stage {s} has no ranks, so micro-batch {m} must be routed for its layers")


def _holds(outer: LayerRange, inner: LayerRange) -> bool:
    return outer.first <= inner.first and inner.end <= outer.end and len(inner) > 0
