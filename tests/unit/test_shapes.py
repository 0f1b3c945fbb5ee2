"""The model's tensors, how they are cut, and which models are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.config import ModelSection
from lurcher.errors import UserError
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.runtime.initial import initial_values
from lurcher.runtime.shapes import VOCAB_SIZE, Held, check_model, held_tensors, num_vocab_blocks, tensor_specs


def changed(**fields) -> ModelSection:
    return msgspec.structs.replace(ModelSection(num_layers=4), **fields)


def grid(tp: int = 2, pp: int = 2, dp: int = 2, num_layers: int = 4) -> Layout:
    return Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=num_layers, num_microbatches=8)


def test_parameters_number_what_the_formula_says():
    model = ModelSection(num_layers=4)
    attention = model.hidden * (model.num_heads + 2 * model.num_kv_heads) * (model.hidden // model.num_heads) + model.hidden**2
    feed_forward = 3 * model.hidden * model.ffn_blocks * model.ffn_block_size
    padded = -(-257 // model.vocab_block_size) * model.vocab_block_size
    expected = model.num_layers * (attention + feed_forward + 2 * model.hidden) + 2 * padded * model.hidden + model.hidden
    assert sum(spec.num_atoms * spec.atom_size for spec in tensor_specs(model)) == expected
    tied = sum(spec.num_atoms * spec.atom_size for spec in tensor_specs(changed(tied=True)))
    assert tied == expected - padded * model.hidden


@pytest.mark.parametrize("tied", [False, True])
def test_the_ranks_of_a_replica_hold_every_atom_of_every_tensor(tied):
    model = changed(tied=tied)
    layout = grid(tp=2, pp=2, dp=1)
    for spec in tensor_specs(model):
        atoms = [a for rank in layout.ranks for h in held_tensors(model, layout, rank) if h.spec == spec for a in range(h.first, h.end)]
        copies = 1 if spec.split else 2
        if spec.name == "embed" and tied:
            copies = 2
        assert sorted(atoms) == sorted(list(range(spec.num_atoms)) * copies)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_atoms_follow_the_shares_in_contiguous_ranges(shares):
    model = changed(num_layers=1, num_kv_heads=16, num_heads=16, ffn_blocks=40, vocab_block_size=4)
    stage = Stage(tuple(range(len(shares))), tuple(shares), (LayerRange(0, 1),))
    layout = Layout(1, 1, (Replica((stage,), 1),))
    position: dict[str, int] = {}
    for rank, share in enumerate(shares):
        for held in held_tensors(model, layout, rank):
            if held.spec.split:
                assert held.first == position.get(held.spec.name, 0)
                position[held.spec.name] = held.end
                assert abs(held.end - held.first - held.spec.num_atoms * share / sum(shares)) < 1
    assert all(position[spec.name] == spec.num_atoms for spec in tensor_specs(model) if spec.split)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden": 60}, ["model.hidden is 60", "model.num_heads = 16"]),
        ({"num_kv_heads": 5}, ["model.num_heads is 16", "model.num_kv_heads = 5"]),
        ({"hidden": 48}, ["is 3", "even"]),
        ({"seq_len": 0}, ["model.seq_len is 0", "1 or more"]),
        ({"num_layers": 3}, ["model.num_layers is 3", "4 layers"]),
        ({"num_kv_heads": 1}, ["num_kv_heads = 1", "2 ranks", "lower layout.tp"]),
        ({"ffn_blocks": 1}, ["ffn_blocks = 1", "2 ranks"]),
        ({"vocab_block_size": 300}, ["vocabulary blocks = 1", "2 ranks"]),
        ({"rope_base": 1.0}, ["model.rope_base is 1", "above 1"]),
    ],
)
def test_impossible_models_are_refused_by_field_and_value(fields, words):
    with pytest.raises(UserError) as caught:
        check_model(changed(**fields), grid())
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_possible_models_pass():
    check_model(ModelSection(num_layers=4), grid())
    check_model(changed(tied=True), grid(tp=8, pp=1, dp=1))


def test_initial_values_do_not_depend_on_how_a_tensor_is_cut():
    model = ModelSection(num_layers=4)
    for spec in tensor_specs(model):
        whole = initial_values(model, 5, Held(spec, 0, spec.num_atoms))
        if spec.split:
            parts = [initial_values(model, 5, Held(spec, a, a + 1))[0] for a in range(spec.num_atoms)]
            assert (whole == parts).all()
            assert (whole != initial_values(model, 6, Held(spec, 0, spec.num_atoms))).any()
        else:
            assert (whole == 1).all()


def test_padding_rows_start_at_zero_and_real_rows_do_not():
    model = ModelSection(num_layers=4)
    spec = tensor_specs(model)[0]
    rows = initial_values(model, 0, Held(spec, 0, spec.num_atoms)).reshape(-1, model.hidden)
    assert len(rows) == num_vocab_blocks(model) * model.vocab_block_size
    assert (rows[VOCAB_SIZE:] == 0).all()
    assert (rows[:VOCAB_SIZE] != 0).all()
