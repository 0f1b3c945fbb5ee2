"""Initial values, keyed by (seed, tensor, atom): every layout starts from the same bits. numpy only."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from lurcher.config import ModelSection
from lurcher.runtime.shapes import VOCAB_SIZE, Held, TensorSpec


def initial_values(model: ModelSection, seed: int, held: Held) -> npt.NDArray[np.float64]:
    """Values of the local tensor of `held`, of its shape, in float64: norms one, matrices normal with a deviation by fan-in."""
    if not held.spec.split:
        return np.ones(held.shape)
    return np.stack([_atom(model, seed, held.spec, atom) for atom in range(held.first, held.end)])


def _atom(model: ModelSection, seed: int, spec: TensorSpec, atom: int) -> npt.NDArray[np.float64]:
    digest = hashlib.sha256(f"{seed}/{spec.name}/{atom}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    values = generator.standard_normal(spec.atom_shape) * _deviation(model, spec)
    if spec.layer is None:
        # Padding rows never take part in a loss; zero names them as such.
        values[max(0, VOCAB_SIZE - atom * model.vocab_block_size) :] = 0.0
    return values


def _deviation(model: ModelSection, spec: TensorSpec) -> float:
    """1 / sqrt(fan-in); the two matrices that write to the residual stream also by 1 / sqrt(2 layers), as GPT-2 does."""
    if spec.name.endswith(".wo"):
        return 1.0 / math.sqrt(2 * model.num_layers * model.hidden)
    if spec.name.endswith(".down"):
        return 1.0 / math.sqrt(2 * model.num_layers * model.ffn_blocks * model.ffn_block_size)
    return 1.0 / math.sqrt(model.hidden)
