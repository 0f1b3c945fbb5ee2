"""Write-once decisions: what was sealed stands, late writers are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.runtime.ledger import Ledger


def test_complete_only_when_every_rank_acknowledged() -> None:
    ledger = Ledger([0, 1, 2])
    assert not ledger.acknowledge(0, 0, 5)
    assert not ledger.acknowledge(2, 0, 5)
    assert ledger.missing(5) == (1,)
    assert ledger.acknowledge(1, 0, 5)


def test_first_seal_stands() -> None:
    ledger = Ledger([0])
    assert ledger.seal(3, "ABORT") == "ABORT"
    assert ledger.seal(3, "COMMIT") == "ABORT"
    assert ledger.sealed(0, 3) == "ABORT"


def test_old_generation_strangers_and_sealed_iterations_are_refused() -> None:
    ledger = Ledger([0, 1])
    ledger.seal(0, "COMMIT")
    assert not ledger.acknowledge(0, 0, 0)
    ledger.advance(1, [0])
    assert not ledger.acknowledge(1, 1, 1)
    assert not ledger.acknowledge(0, 0, 1)
    assert ledger.refused == 3
    assert ledger.acknowledge(0, 1, 1)


def test_generations_only_grow() -> None:
    ledger = Ledger([0])
    with pytest.raises(ValueError, match="does not follow"):
        ledger.advance(0, [0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4), st.sampled_from(["ack", "COMMIT", "ABORT"])), max_size=60))
def test_no_order_of_messages_changes_a_sealed_decision(moves: list[tuple[int, int, int, str]]) -> None:
    ledger = Ledger([0, 1, 2])
    first: dict[tuple[int, int], str] = {}
    for rank, generation, iteration, what in moves:
        if what == "ack":
            ledger.acknowledge(rank, generation, iteration)
        else:
            key = (ledger.generation, iteration)
            first.setdefault(key, what)
            assert ledger.seal(iteration, what) == first[key]  # type: ignore[arg-type]
    assert all(ledger.sealed(*key) == decision for key, decision in first.items())
