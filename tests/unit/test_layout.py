"""Layout: the grid is a bijection, every (micro-batch, layer) is executed exactly once, and what breaks that is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Position, Replica, Route, Stage, apportion

SIZES = st.integers(1, 4)


@st.composite
def uniform(draw: st.DrawFn) -> Layout:
    pp, dp = draw(SIZES), draw(SIZES)
    return Layout.uniform(tp=draw(SIZES), pp=pp, dp=dp, num_layers=draw(st.integers(pp, 12)), num_microbatches=draw(st.integers(dp, 12)))


@st.composite
def uneven(draw: st.DrawFn) -> Layout:
    """Replicas that differ in stages, layers, tensor degree, shares, chunks and micro-batches; and some standby ranks."""
    num_layers = draw(st.integers(2, 10))
    ranks = iter(draw(st.permutations(range(64))))
    replicas = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, num_layers - 1), max_size=4)))
        ranges = [LayerRange(a, b) for a, b in zip([0, *cuts], [*cuts, num_layers], strict=True)]
        num_stages = draw(st.integers(1, len(ranges)))
        interleaved = num_stages < len(ranges)
        chunks = [tuple(ranges[s::num_stages]) for s in range(num_stages)] if interleaved else [(r,) for r in ranges]
        stages = [stage(draw, ranks, chunk) for chunk in chunks]
        replicas.append(Replica(tuple(stages), draw(st.integers(0, 5))))
    standby = tuple(next(ranks) for _ in range(draw(st.integers(0, 2))))
    return Layout(num_layers, sum(r.microbatches for r in replicas), tuple(replicas), standby)


def stage(draw: st.DrawFn, ranks: object, chunks: tuple[LayerRange, ...]) -> Stage:
    members = tuple(next(ranks) for _ in range(draw(st.integers(1, 4))))  # type: ignore[call-overload]
    return Stage(members, tuple(draw(st.integers(1, 3)) for _ in members), chunks)


def executions(layout: Layout) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """By brute force, from the fields alone: every (micro-batch, layer) and all the (replica, stage) that execute it."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {(m, k): [] for m in range(layout.num_microbatches) for k in range(layout.num_layers)}
    first = 0
    for d, replica in enumerate(layout.replicas):
        for m in range(first, first + replica.microbatches):
            for s, held in enumerate(replica.stages):
                for chunk in held.chunks:
                    for k in range(chunk.first, chunk.end):
                        if not any(r.microbatch == m and r.chunk.first <= k < r.chunk.end for r in layout.routes):
                            found[m, k].append((d, s))
        first += replica.microbatches
    for r in layout.routes:
        for k in range(r.chunk.first, r.chunk.end):
            found[r.microbatch, k].append((r.replica, r.stage))
    return found


def two_replicas(counts: Sequence[int] = (2, 2), **changes: object) -> dict[str, object]:
    """Fields of a small layout: two replicas of two stages of one rank, four layers."""
    cuts = (LayerRange(0, 2), LayerRange(2, 4))
    stages = [tuple(Stage((2 * d + s,), (1,), (cuts[s],)) for s in range(2)) for d in range(2)]
    fields: dict[str, object] = {
        "num_layers": 4,
        "num_microbatches": sum(counts),
        "replicas": tuple(Replica(stages[d], counts[d]) for d in range(2)),
    }
    return fields | changes


def with_empty_stage(routes: tuple[Route, ...]) -> Layout:
    """Stage 1 of replica 0 has no ranks."""
    fields = two_replicas()
    first, second = fields["replicas"]  # type: ignore[misc]
    emptied = Replica((first.stages[0], Stage((), (), first.stages[1].chunks)), first.microbatches)
    return Layout(**(fields | {"replicas": (emptied, second), "routes": routes}))  # type: ignore[arg-type]


@given(uniform())
def test_ranks_and_positions_are_a_bijection(layout: Layout) -> None:
    tp, pp = layout.replicas[0].stages[0].tp_size, len(layout.replicas[0].stages)
    assert layout.ranks == tuple(range(tp * pp * len(layout.replicas)))
    assert layout.world_size == len(layout.ranks)
    for rank in layout.ranks:
        at = layout.position(rank)
        assert rank == (at.dp * pp + at.pp) * tp + at.tp
        assert layout.rank(dp=at.dp, pp=at.pp, tp=at.tp) == rank


@given(uneven())
def test_positions_lead_back_to_ranks_in_any_layout(layout: Layout) -> None:
    assert [layout.rank(**layout.position(rank)._asdict()) for rank in layout.ranks] == list(layout.ranks)
    assert layout.world_size == len(layout.ranks) + len(layout.standby)
    for rank in layout.standby:
        with pytest.raises(KeyError, match="holds no stage"):
            layout.position(rank)


@given(st.one_of(uniform(), uneven()))
def test_every_microbatch_and_layer_is_executed_exactly_once(layout: Layout) -> None:
    for (m, k), executors in executions(layout).items():
        assert executors == [layout.executor(m, k)]
    homes = [m for d in range(len(layout.replicas)) for m in layout.microbatches_of(d)]
    assert homes == list(range(layout.num_microbatches))


@given(uniform())
def test_a_uniform_layout_is_as_even_as_it_can_be(layout: Layout) -> None:
    layers = [held.num_layers for held in layout.replicas[0].stages]
    for counts, total in ((layers, layout.num_layers), (list(layout.split), layout.num_microbatches)):
        assert sum(counts) == total
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@given(uniform())
def test_groups_are_those_of_the_grid(layout: Layout) -> None:
    """Against plain arithmetic: ranks alike in all axes but one communicate along it."""
    tp, pp, dp = layout.replicas[0].stages[0].tp_size, len(layout.replicas[0].stages), len(layout.replicas)
    world = range(tp * pp * dp)
    expected = [("world", tuple(world))]
    if tp > 1:
        expected += [("tp", tuple(range(first, first + tp))) for first in world[::tp]]
    if pp > 1:
        expected += [("pp", tuple(range(first, first + tp * pp))) for first in world[:: tp * pp]]
    if dp > 1:
        expected += [("dp", tuple(world[place :: tp * pp])) for place in range(tp * pp)]
    assert [(group.kind, group.ranks) for group in layout.groups()] == expected
    assert [group.id for group in layout.groups()] == list(range(len(expected)))


def test_groups_of_unlike_replicas_join_only_like_positions() -> None:
    wide = Replica((Stage((0, 1), (2, 1), (LayerRange(0, 4),)),), 1)
    thin = Replica((Stage((2,), (1,), (LayerRange(0, 4),)),), 1)
    kinds = [(group.kind, group.ranks) for group in Layout(4, 2, (wide, thin)).groups()]
    assert kinds == [("world", (0, 1, 2)), ("tp", (0, 1)), ("dp", (0, 2))]


@given(st.one_of(uniform(), uneven()))
def test_it_survives_json_and_pickle_with_one_digest(layout: Layout) -> None:
    copy = msgspec.json.decode(msgspec.json.encode(layout), type=Layout)
    assert copy == layout
    assert copy.digest() == layout.digest()
    assert pickle.loads(pickle.dumps(layout)) == layout
    if layout.num_microbatches:
        assert layout.with_split(layout.split).digest() != layout.digest()


def test_the_digest_does_not_change_between_processes_or_versions() -> None:
    assert Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32).digest() == "11db432c2d9cc0b4"


@given(uneven(), st.data())
def test_another_split_is_the_next_generation_of_the_same_stages(layout: Layout, data: st.DataObject) -> None:
    counts = [0] * len(layout.replicas)
    for _ in range(layout.num_microbatches):
        counts[data.draw(st.integers(0, len(counts) - 1))] += 1
    changed = layout.with_split(counts)
    assert changed.split == tuple(counts)
    assert changed.generation == layout.generation + 1
    assert [r.stages for r in changed.replicas] == [r.stages for r in layout.replicas]
    assert changed.standby == layout.standby


def test_a_split_that_does_not_fit_is_refused() -> None:
    layout = Layout(**two_replicas())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sum to 5, but the job runs 4"):
        layout.with_split((3, 2))
    with pytest.raises(UserError, match="-1 micro-batches; 0 is the least"):
        layout.with_split((5, -1))
    with pytest.raises(ValueError, match="shorter"):
        layout.with_split((4,))


def test_routes_take_the_place_of_an_empty_stage() -> None:
    routes = (Route(0, LayerRange(2, 4), 1, 1), Route(1, LayerRange(2, 3), 1, 1), Route(1, LayerRange(3, 4), 1, 1))
    layout = with_empty_stage(routes)
    for (m, k), executors in executions(layout).items():
        assert executors == [layout.executor(m, k)]
    assert layout.executor(0, 3) == (1, 1)
    assert layout.executor(0, 1) == (0, 0)
    assert layout.ranks == (0, 2, 3)


def test_a_live_stage_may_route_a_part_of_its_work() -> None:
    layout = Layout(**two_replicas(routes=(Route(0, LayerRange(0, 1), 1, 0),)))  # type: ignore[arg-type]
    assert [layout.executor(0, k) for k in range(4)] == [(1, 0), (0, 0), (0, 1), (0, 1)]
    assert layout.with_split((1, 3)).routes == ()


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ((), "micro-batch 0 must be routed"),
        ((Route(0, LayerRange(2, 4), 1, 1),), "micro-batch 1 must be routed"),
        ((Route(0, LayerRange(2, 4), 1, 1), Route(1, LayerRange(2, 3), 1, 1)), "micro-batch 1 must be routed"),
        ((Route(0, LayerRange(2, 4), 1, 1), Route(1, LayerRange(2, 4), 0, 1)), "must lead to a live stage of another replica"),
        ((Route(2, LayerRange(2, 4), 0, 1),), "must lead to a live stage of another replica"),
        ((Route(0, LayerRange(2, 4), 1, 0),), "that holds them, not to replica 1 stage 0"),
        ((Route(0, LayerRange(2, 4), 1, 2),), "does not exist"),
        ((Route(0, LayerRange(2, 4), -1, 1),), "does not exist"),
        ((Route(4, LayerRange(2, 4), 1, 1),), "the job has 0..3"),
        ((Route(0, LayerRange(2, 4), 1, 1), Route(0, LayerRange(3, 4), 1, 1)), "routed twice for layers 3..3"),
        ((Route(0, LayerRange(2, 2), 1, 1),), "that holds them"),
    ],
)
def test_routes_that_leave_or_double_work_are_refused(routes: tuple[Route, ...], said: str) -> None:
    with pytest.raises(UserError) as caught:
        with_empty_stage(routes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replicas": ()}, "at least one replica"),
        ({"num_layers": 0}, "at least one layer, not 0"),
        ({"num_layers": 5}, "replica 0 holds layers 0..3 of 5"),
        ({"num_microbatches": 5}, "sum to 4, but the job runs 5"),
        ({"standby": (3,)}, "rank 3 stands 2 times"),
        ({"standby": (-1,)}, "numbered from 0"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Layout(**two_replicas(**changes))  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([((0,), (1,), (0, 2)), ((0,), (1,), (2, 4))], "rank 0 stands 2 times"),
        ([((0,), (1,), (0, 2)), ((1,), (1,), (3, 4))], "layers 3..3 do not follow layer 1"),
        ([((0,), (1,), (0, 2)), ((1,), (1,), (1, 4))], "layers 1..3 do not follow layer 1"),
        ([((0,), (1,), (0, 2)), ((1,), (1,), (2, 2))], "layers 2..1 do not follow"),
        ([((0,), (1,), (2, 4)), ((1,), (1,), (0, 2))], "in pipeline order"),
        ([((0, 1), (1,), (0, 4))], "must give each of its 2 ranks"),
        ([((0, 1), (1, 0), (0, 4))], "must give each of its 2 ranks"),
    ],
)
def test_stages_that_do_not_make_the_model_are_refused(stages: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]], said: str) -> None:
    replica = Replica(tuple(Stage(ranks, shares, (LayerRange(*cut),)) for ranks, shares, cut in stages), 1)
    with pytest.raises(UserError) as caught:
        Layout(4, 1, (replica,))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"tp": 0}, "layout.tp is 0; it must be 1 or more"),
        ({"pp": 5}, "the model has 4 layers"),
        ({"dp": 5}, "layout.num_microbatches is 4 for 5 replicas"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: dict[str, int], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Layout.uniform(**({"tp": 1, "pp": 1, "dp": 1, "num_layers": 4, "num_microbatches": 4} | grid))
    assert said in str(caught.value)


def test_interleaved_chunks_belong_to_one_stage() -> None:
    stages = (
        Stage((0,), (1,), (LayerRange(0, 1), LayerRange(2, 3))),
        Stage((1,), (1,), (LayerRange(1, 2), LayerRange(3, 4))),
    )
    layout = Layout(4, 1, (Replica(stages, 1),))
    assert [layout.stage_of_layer(0, k) for k in range(4)] == [0, 1, 0, 1]
    assert layout.position(1) == Position(0, 1, 0)
    with pytest.raises(KeyError, match="holds layer 4"):
        layout.stage_of_layer(0, 4)


@given(st.integers(0, 200), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_apportion_is_whole_and_within_one_of_the_exact_share(num_atoms: int, shares: list[int]) -> None:
    parts = apportion(num_atoms, shares)
    assert sum(parts) == num_atoms
    exact = [Fraction(num_atoms * share, sum(shares)) for share in shares]
    assert all(abs(part - want) < 1 for part, want in zip(parts, exact, strict=True))
    rests = [want - (want.numerator // want.denominator) for want in exact]
    raised = [rests[i] for i in range(len(parts)) if parts[i] > exact[i]]
    kept = [rests[i] for i in range(len(parts)) if parts[i] <= exact[i] and rests[i] > 0]
    assert not raised or not kept or min(raised) >= max(kept)
