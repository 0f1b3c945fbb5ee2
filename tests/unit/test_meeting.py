"""What a stage's mates lose to each other, against a plain loop over the chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.model.meeting import meeting_s
from lurcher.records import CHUNK, Op


def chunk_rows(stages: list[tuple[int, ...]], num_microbatches: int, rng: np.random.Generator) -> np.ndarray:
    rows = [
        (r, m, phase, *rng.uniform(0.001, 0.02, 3), 0.0)
        for ranks in stages
        for r in ranks
        for m in range(num_microbatches)
        for phase in (Op.FORWARD, Op.BACKWARD)
    ]
    rng.shuffle(rows)
    return np.array(rows, dtype=CHUNK)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 5))
def test_equals_a_plain_loop(seed: int, sizes: list[int], num_microbatches: int) -> None:
    rng = np.random.default_rng(seed)
    firsts = np.cumsum([0, *sizes])
    stages = [tuple(range(first, first + size)) for first, size in zip(firsts, sizes, strict=False)]
    chunks = chunk_rows(stages, num_microbatches, rng)
    rows, lost_s = meeting_s(chunks, stages)
    assert len(rows) == len(chunks)
    for row, lost in zip(rows, lost_s, strict=True):
        ranks = next(ranks for ranks in stages if row["rank"] in ranks)
        mates = chunks[np.isin(chunks["rank"], ranks) & (chunks["microbatch"] == row["microbatch"]) & (chunks["phase"] == row["phase"])]
        whole = (mates["busy_s"] + mates["wait_s"] + mates["transfer_s"]).min()
        assert lost == pytest.approx(max(whole - mates["busy_s"].max(), mates["transfer_s"].min()))


def test_ranks_of_no_stage_are_left_out() -> None:
    chunks = chunk_rows([(0, 1), (2, 3)], 2, np.random.default_rng(0))
    rows, lost_s = meeting_s(chunks, [(2, 3)])
    assert set(rows["rank"]) == {2, 3} and len(lost_s) == len(rows)
    assert len(meeting_s(chunks, [])[0]) == 0
