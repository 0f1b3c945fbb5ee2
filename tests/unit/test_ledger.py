"""Write-once decisions: what was sealed stands, late writers are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.runtime.ledger import Ledger


def test_complete_only_when_every_rank_acknowledged() -> None:
    ledger = Ledger.open([0, 1, 2], iteration=5).acknowledge(0, 0, 5).acknowledge(2, 0, 5)
    assert ledger.missing == {1}
    with pytest.raises(ValueError, match=r"lacks the acknowledgements of ranks \[1\]"):
        ledger.seal(5, "COMMIT")
    assert ledger.acknowledge(1, 0, 5).seal(5, "COMMIT")[1] == "COMMIT"


def test_first_seal_stands() -> None:
    ledger, decision = Ledger.open([0], iteration=3).seal(3, "ABORT")
    assert decision == "ABORT"
    assert ledger.seal(3, "COMMIT") == (ledger, "ABORT")
    assert ledger.sealed(0, 3) == "ABORT"


def test_old_generation_strangers_and_sealed_iterations_are_refused() -> None:
    ledger, _ = Ledger.open([0]).acknowledge(0, 0, 0).seal(0, "COMMIT")
    assert ledger.acknowledge(0, 0, 0) == ledger
    ledger = ledger.advance(1, [0], 1)
    assert ledger.acknowledge(1, 1, 1) == ledger
    assert ledger.acknowledge(0, 0, 1) == ledger
    assert not ledger.acknowledge(0, 1, 1).missing


def test_an_aborted_generation_takes_nothing_more() -> None:
    ledger, _ = Ledger.open([0]).seal(0, "ABORT")
    assert ledger.acknowledge(0, 0, 0) == ledger
    with pytest.raises(ValueError, match="is not open"):
        ledger.seal(1, "COMMIT")


def test_going_back_seals_the_same_iteration_again_in_another_generation() -> None:
    ledger = Ledger.open([0])
    for iteration in range(3):
        ledger, _ = ledger.acknowledge(0, 0, iteration).seal(iteration, "COMMIT")
    ledger, _ = ledger.seal(3, "ABORT")
    ledger = ledger.advance(1, [0], 1)
    assert ledger.sealed(0, 1) == "COMMIT" and ledger.sealed(1, 1) is None
    ledger, _ = ledger.seal(1, "ABORT")
    assert ledger.sealed(0, 1) == "COMMIT" and ledger.sealed(1, 1) == "ABORT"


def test_generations_only_grow() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        Ledger.open([0]).advance(0, [0], 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4), st.sampled_from(["ack", "COMMIT", "ABORT", "next"])), max_size=60))
def test_no_order_of_messages_changes_a_sealed_decision(moves: list[tuple[int, int, int, str]]) -> None:
    ledger = Ledger.open([0, 1, 2])
    first: dict[tuple[int, int], str] = {}
    acked: set[tuple[int, int, int]] = set()
    for rank, generation, iteration, what in moves:
        if what == "ack":
            acked.add((rank, generation, iteration))
            ledger = ledger.acknowledge(rank, generation, iteration)
        elif what == "next" and generation > ledger.generation:
            ledger = ledger.advance(generation, [0, 1, 2], iteration)
        elif what in ("COMMIT", "ABORT"):
            key = (ledger.generation, iteration)
            try:
                ledger, decision = ledger.seal(iteration, what)  # type: ignore[arg-type]
            except ValueError:
                assert key not in first
                continue
            assert first.setdefault(key, decision) == decision
            if decision == "COMMIT":
                assert all((r, *key) in acked for r in (0, 1, 2))
    assert all(ledger.sealed(*key) == decision for key, decision in first.items())
