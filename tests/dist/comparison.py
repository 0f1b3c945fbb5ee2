"""What ranks ended with, held against one plain torch process."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np
from reference import Trained
from spawned import RankResult


def worst_error(ranks: dict[int, RankResult], reference: Trained) -> dict[str, float]:
    """Per kind the largest of max|a - b| / max|b| over tensors; every element of every rank is compared, and none is missing."""
    worst: dict[str, float] = defaultdict(float)
    covered: dict[str, set[int]] = defaultdict(set)
    largest: dict[str, float] = defaultdict(float)
    for result in ranks.values():
        for name, value in result.state.items():
            tensor, first, end = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name).groups()
            whole = reference.state[tensor].numpy()
            expected = whole[int(first) : int(end)] if whole.ndim > 1 else whole
            assert value.shape == expected.shape and value.dtype == expected.dtype
            largest[tensor] = max(largest[tensor], float(np.abs(value - expected).max()) / float(np.abs(whole).max()))
            covered[tensor] |= set(range(int(first), int(end)))
    for tensor, whole in reference.state.items():
        assert covered[tensor] == set(range(len(whole) if whole.ndim > 1 else 1)), tensor
        kind = tensor.split("/")[0]
        worst[kind] = max(worst[kind], largest[tensor])
    return dict(worst)


def owners_of_slices(ranks: dict[int, RankResult]) -> Counter[str]:
    """How many ranks own each slice; AssertionError where they hold different bits of it."""
    seen: dict[str, set[str]] = defaultdict(set)
    num_owners: Counter[str] = Counter()
    for result in ranks.values():
        for piece, digest in result.digests.items():
            seen[piece].add(digest)
            num_owners[piece] += 1
    assert all(len(digests) == 1 for digests in seen.values())
    return num_owners
