"""Random faults: the same for a seed, within what they promise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lurcher.control.chaos import FACTORS, FIRST_ITERATION, draw_faults
from lurcher.faults import Iterations, parse_fault


@given(seed=st.integers(0, 10_000), num_ranks=st.integers(1, 64), num_iterations=st.integers(1, 2_000))
def test_faults_keep_their_promises(seed, num_ranks, num_iterations):
    faults = draw_faults(seed, range(num_ranks), num_iterations)
    assert faults == draw_faults(seed, range(num_ranks), num_iterations)
    gone: set[int] = set()
    onset = 0
    for fault in faults:
        assert parse_fault(str(fault)) == fault
        (rank,) = fault.where.ranks
        assert rank in range(num_ranks) and rank not in gone
        assert isinstance(fault.onset, Iterations) and max(FIRST_ITERATION, onset) <= fault.onset.n < num_iterations
        onset = fault.onset.n
        if fault.kind in ("stop", "hang"):
            gone.add(rank)
        else:
            assert FACTORS[0] <= fault.factor <= FACTORS[1]
    assert len(gone) <= num_ranks // 2


def test_every_kind_comes():
    kinds = {fault.kind for seed in range(20) for fault in draw_faults(seed, range(8), 400)}
    assert kinds == {"slow", "ramp", "flap", "stop", "hang"}
