"""The model as a list of tensors cut into atoms, and which atoms a rank holds. Torch-free.

An atom is the smallest part of a tensor that moves between ranks: a KV group with its query heads, an FFN block, a block of
vocabulary rows. Every split tensor is stored atom dimension first, so that the atoms of a rank are one contiguous range.
"""

from __future__ import annotations

from math import prod

import msgspec

from lurcher.config import ModelSection
from lurcher.errors import UserError
from lurcher.layout import Layout, Stage, apportion

NUM_BYTES = 256
END_MARK = 256
"""Token that ends a document; it is only ever a target."""
VOCAB_SIZE = NUM_BYTES + 1


class TensorSpec(msgspec.Struct, frozen=True):
    """One parameter of the whole model: shape `[num_atoms, *atom_shape]` where split over tensor ranks, else one atom.

    `layer` is the layer it belongs to, or None for the ends: `at_first` and `at_last` say which end stages hold it (both: tied).
    Only split tensors, the matrices, decay; what is not split (norms) is held whole by every rank of a stage.
    """

    name: str
    num_atoms: int
    atom_shape: tuple[int, ...]
    split: bool
    layer: int | None = None
    at_first: bool = False
    at_last: bool = False

    @property
    def atom_size(self) -> int:
        """Elements of one atom."""
        return prod(self.atom_shape)


class Held(msgspec.Struct, frozen=True):
    """Atoms `first` .. `end - 1` of a tensor, as one rank holds them."""

    spec: TensorSpec
    first: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the local tensor, atom dimension first; a norm has only its own dimension."""
        return (self.end - self.first, *self.spec.atom_shape) if self.spec.split else self.spec.atom_shape

    @property
    def num_elements(self) -> int:
        """Elements of the local tensor."""
        return (self.end - self.first) * self.spec.atom_size


def head_dim(model: ModelSection) -> int:
    """Size of one attention head."""
    return model.hidden // model.num_heads


def heads_per_group(model: ModelSection) -> int:
    """Query heads that share one key and value head (grouped-query attention)."""
    return model.num_heads // model.num_kv_heads


def num_vocab_blocks(model: ModelSection) -> int:
    """Vocabulary blocks, the last one padded: 257 rows rarely fill whole blocks."""
    return -(-VOCAB_SIZE // model.vocab_block_size)


def tensor_specs(model: ModelSection) -> tuple[TensorSpec, ...]:
    """Every parameter, in the canonical order that all ranks agree on."""
    hidden, groups, query_heads, size = model.hidden, model.num_kv_heads, heads_per_group(model), head_dim(model)
    blocks, block = model.ffn_blocks, model.ffn_block_size
    rows = (model.vocab_block_size, hidden)
    specs = [TensorSpec("embed", num_vocab_blocks(model), rows, True, at_first=True, at_last=model.tied)]
    for layer in range(model.num_layers):
        name = f"layers.{layer}"
        specs += [
            TensorSpec(f"{name}.attn.norm", 1, (hidden,), False, layer),
            TensorSpec(f"{name}.attn.wqkv", groups, ((query_heads + 2) * size, hidden), True, layer),
            TensorSpec(f"{name}.attn.wo", groups, (query_heads * size, hidden), True, layer),
            TensorSpec(f"{name}.ffn.norm", 1, (hidden,), False, layer),
            TensorSpec(f"{name}.ffn.gate_up", blocks, (2 * block, hidden), True, layer),
            TensorSpec(f"{name}.ffn.down", blocks, (block, hidden), True, layer),
        ]
    specs.append(TensorSpec("final_norm", 1, (hidden,), False, at_last=True))
    if not model.tied:
        specs.append(TensorSpec("head", num_vocab_blocks(model), rows, True, at_last=True))
    return tuple(specs)


def holds(spec: TensorSpec, layout: Layout, replica: int, stage: int) -> bool:
    """Whether that stage of that replica works with the tensor."""
    stages = layout.replicas[replica].stages
    if spec.layer is not None:
        return any(spec.layer in chunk for chunk in stages[stage].chunks)
    return (spec.at_first and stage == 0) or (spec.at_last and stage == len(stages) - 1)


def atom_range(spec: TensorSpec, stage: Stage, tp_rank: int) -> tuple[int, int]:
    """(first, end) of the atoms that one rank of a stage holds: contiguous, in the order of `stage.ranks`, by shares."""
    if not spec.split:
        return 0, 1
    counts = apportion(spec.num_atoms, stage.shares)
    first = sum(counts[:tp_rank])
    return first, first + counts[tp_rank]


def held_tensors(model: ModelSection, layout: Layout, rank: int) -> tuple[Held, ...]:
    """All that `rank` holds, in canonical order; nothing for a standby."""
    if rank not in layout.ranks:
        return ()
    where = layout.position(rank)
    stage = layout.replicas[where.dp].stages[where.pp]
    return tuple(Held(spec, *atom_range(spec, stage, where.tp)) for spec in tensor_specs(model) if holds(spec, layout, where.dp, where.pp))


def check_model(model: ModelSection, layout: Layout) -> None:
    """Raise UserError, naming field, value and what is allowed, if the model cannot be built or not be cut as the layout asks."""
    _check_numbers(model)
    if layout.num_layers != model.num_layers:
        raise UserError(f"model.num_layers is {model.num_layers} but the layout has {layout.num_layers} layers; make them equal")
    atoms = (("num_kv_heads", model.num_kv_heads), ("ffn_blocks", model.ffn_blocks), ("vocabulary blocks", num_vocab_blocks(model)))
    for d, s, stage in layout.stages():
        for name, count in atoms:
            if stage.ranks and min(apportion(count, stage.shares)) < 1:
                raise UserError(
                    f"replica {d} stage {s} cuts model {name} = {count} over {stage.tp_size} ranks with shares {stage.shares}, and a rank gets none;"
                    f" every rank needs one: lower layout.tp or raise {name}"
                )


def _check_numbers(model: ModelSection) -> None:
    for field in ("num_layers", "hidden", "num_heads", "num_kv_heads", "ffn_blocks", "ffn_block_size", "vocab_block_size", "seq_len"):
        if getattr(model, field) < 1:
            raise UserError(f"model.{field} is {getattr(model, field)}; it must be 1 or more")
    if model.hidden % model.num_heads:
        raise UserError(f"model.hidden is {model.hidden}; it must be a multiple of model.num_heads = {model.num_heads}")
    if model.num_heads % model.num_kv_heads:
        raise UserError(f"model.num_heads is {model.num_heads}; it must be a multiple of model.num_kv_heads = {model.num_kv_heads}")
    if head_dim(model) % 2:
        raise UserError(
            f"model.hidden / model.num_heads is {head_dim(model)}; it must be even, for rotary positions turn pairs:"
            " change model.hidden or model.num_heads"
        )
    if model.rope_base <= 1.0:
        raise UserError(f"model.rope_base is {model.rope_base:g}; it must be above 1, commonly 10000")
