"""Words that the reasons of plans share."""

from __future__ import annotations

from collections.abc import Sequence


def replica_words(indices: Sequence[int]) -> str:
    """Which replicas, or how many where the names would fill the line."""
    if len(indices) > 6:
        return f"{len(indices)} replicas"
    return f"replica{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def split_words(split: Sequence[int]) -> str:
    """The split itself, or its range where it would fill the line."""
    if len(split) <= 8:
        return "/".join(str(m) for m in split)
    return f"{min(split)} to {max(split)} on {len(split)} replicas"


def rank_words(ranks: Sequence[int]) -> str:
    """Which ranks, or how many where the names would fill the line."""
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
