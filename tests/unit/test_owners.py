"""Owner sets against brute force: every atom's owners are exactly the ranks that hold it."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.config import ModelSection
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.runtime.owners import cut_slices, owner_sets, slices_of
from lurcher.runtime.shapes import held_tensors, tensor_specs


def model(tied: bool) -> ModelSection:
    return ModelSection(num_layers=3, hidden=32, num_heads=8, num_kv_heads=8, ffn_blocks=8, ffn_block_size=4, vocab_block_size=16, tied=tied)


@st.composite
def layouts(draw):
    """Up to three replicas that cut 3 layers, and the ranks of every stage, each in its own way."""
    rank, replicas = 0, []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, 2), max_size=2)))
        stages = []
        for first, end in zip([0, *cuts], [*cuts, 3], strict=True):
            shares = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=3)))
            stages.append(Stage(tuple(range(rank, rank + len(shares))), shares, (LayerRange(first, end),)))
            rank += len(shares)
        replicas.append(Replica(tuple(stages), 1))
    return Layout(3, len(replicas), tuple(replicas))


@settings(max_examples=60, deadline=None)
@given(layouts(), st.booleans())
def test_owners_are_the_ranks_that_hold_the_atom(layout, tied):
    section = model(tied)
    holders: dict[tuple[str, int], set[int]] = {}
    for rank in layout.ranks:
        for held in held_tensors(section, layout, rank):
            for atom in range(held.first, held.end):
                holders.setdefault((held.spec.name, atom), set()).add(rank)
    found = {}
    for piece in cut_slices(section, layout):
        assert piece.owners == tuple(sorted(piece.owners))
        assert piece.primary == min(piece.owners)
        for atom in range(piece.first, piece.end):
            assert (piece.tensor, atom) not in found
            found[(piece.tensor, atom)] = set(piece.owners)
    assert found == holders
    assert set(found) == {(spec.name, atom) for spec in tensor_specs(section) for atom in range(spec.num_atoms)}


@settings(max_examples=40, deadline=None)
@given(layouts(), st.booleans())
def test_owner_sets_hold_every_slice_once_and_all_ranks_agree_on_their_order(layout, tied):
    pieces = cut_slices(model(tied), layout)
    sets = owner_sets(pieces)
    assert sorted(p.name for group in sets.values() for p in group) == sorted(p.name for p in pieces)
    assert all(piece.owners == owners for owners, group in sets.items() for piece in group)
    for rank in layout.ranks:
        mine = slices_of(pieces, rank)
        assert [p for p in pieces if rank in p.owners] == list(mine)


def test_uniform_layouts_sum_over_pairs_and_norms_over_all_copies():
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=3, num_microbatches=2)
    sets = owner_sets(cut_slices(model(tied=False), layout))
    assert set(sets) == {(0, 4), (1, 5), (2, 6), (3, 7), (0, 1, 4, 5), (2, 3, 6, 7)}
    assert {p.tensor.split(".")[-1] for p in sets[(2, 3, 6, 7)]} == {"norm", "final_norm"}


def test_a_tied_embedding_has_one_owner_set_over_both_ends():
    layout = Layout.uniform(tp=2, pp=3, dp=2, num_layers=3, num_microbatches=2)
    owners = {p.owners for p in cut_slices(model(tied=True), layout) if p.tensor == "embed"}
    assert owners == {(0, 4, 6, 10), (1, 5, 7, 11)}
    untied = {p.owners for p in cut_slices(model(tied=False), layout) if p.tensor == "embed"}
    assert untied == {(0, 6), (1, 7)}


def test_a_new_split_leaves_every_owner_in_place():
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=3, num_microbatches=8)
    assert cut_slices(model(tied=False), layout) == cut_slices(model(tied=False), layout.with_split((6, 2)))
    other = msgspec.structs.replace(layout.replicas[0].stages[0], shares=(2, 1))
    moved = Layout(3, 8, (Replica((other, layout.replicas[0].stages[1]), 4), layout.replicas[1]))
    assert cut_slices(model(tied=False), layout) != cut_slices(model(tied=False), moved)
