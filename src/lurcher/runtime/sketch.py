"""A few numbers an atom that tell two states apart, however their ranks cut the model: random projections of its values.

The direction of a projection comes from the atom's name, so any holder of the atom draws the same one. A projection of a difference has, in the
root mean square over directions, the difference's Euclidean length (Johnson and Lindenstrauss, 1984): never less than the largest single one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lurcher.errors import LurcherError

NUM_PROJECTIONS = 4
"""All of four are below a tenth of the difference's length once in 25,000 atoms; the others of a state tell it then."""

Sketch = dict[str, tuple[float, ...]]
"""By `exp_avg/layers.0.attn.wo[3]`: the atom's largest absolute value, then its projections."""


def sketch_atoms(kind: str, tensor: str, first: int, values: NDArray[Any]) -> Sketch:
    """The atoms `first`, `first` + 1, ... of a tensor; `values` of shape (atoms, elements of one)."""
    found: Sketch = {}
    for atom, row in enumerate(values.astype(np.float64), first):
        directions = np.random.default_rng((crc32(tensor.encode()), atom)).standard_normal((NUM_PROJECTIONS, row.size))
        found[f"{kind}/{tensor}[{atom}]"] = (float(np.abs(row).max()), *map(float, directions @ row))
    return found


def state_errors(seen: Mapping[str, tuple[float, ...]], expected: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    """By kind of state the largest difference of an atom, by its length, over the largest value of its tensor; infinite where that is not finite.

    LurcherError where not both have the same atoms.
    """
    if seen.keys() != expected.keys():
        one = min(seen.keys() ^ expected.keys())
        raise LurcherError(f"{len(seen.keys() ^ expected.keys())} atoms, {one} among them, are in one of two states only")
    largest: dict[str, float] = {}
    for name, (value, *_) in expected.items():
        largest[_tensor(name)] = max(largest.get(_tensor(name), 0.0), value)
    worst: dict[str, float] = {}
    for name, (_, *projections) in expected.items():
        length = float(np.sqrt(np.mean((np.array(seen[name][1:]) - projections) ** 2)))
        error = length / largest[_tensor(name)] if length else 0.0
        kind = name.partition("/")[0]
        worst[kind] = max(worst.get(kind, 0.0), error if np.isfinite(error) else np.inf)
    return worst


def _tensor(name: str) -> str:
    return re.sub(r"\[\d+\]$", "", name)
