"""Schedules as text: known small cases, and properties that hold for every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.model.order import compile_schedule
from lurcher.model.schedule import SCHEDULES, Action, live_microbatches, parse, schedule_text


def test_1f1b_of_three_stages_and_four_microbatches() -> None:
    assert schedule_text("1f1b", 3, 4) == (
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    )


def test_gpipe_runs_all_forwards_first() -> None:
    assert schedule_text("gpipe", 2, 3) == ("F0 F1 F2 B0 B1 B2",) * 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_replica_without_microbatches_has_empty_texts(name: str) -> None:
    assert schedule_text(name, 3, 0) == ("", "", "")


def test_zb_h1_of_three_stages_and_four_microbatches() -> None:
    assert schedule_text("zb_h1", 3, 4) == (
        "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
        "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
        "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
    )


def test_interleaved_of_two_stages_with_two_chunks() -> None:
    """As in figure 4 of arXiv 2104.04473: the first P micro-batches through the first chunk, then through the second."""
    assert schedule_text("interleaved", 2, 4, 2) == (
        "F0 F1 1F0 1F1 F2 1B0 F3 1B1 1F2 B0 1F3 B1 1B2 1B3 B2 B3",
        "F0 F1 1F0 1B0 1F1 1B1 F2 B0 F3 B1 1F2 1B2 1F3 1B3 B2 B3",
    )


@given(name=st.sampled_from(SCHEDULES), num_stages=st.integers(1, 9), num_microbatches=st.integers(0, 20))
def test_each_stage_runs_each_microbatch_forward_then_backward(name: str, num_stages: int, num_microbatches: int) -> None:
    for stage, text in enumerate(schedule_text(name, num_stages, num_microbatches)):
        actions = parse(text)
        for kind in ("F", "B", "W") if name == "zb_h1" else ("F", "B"):
            assert [a.microbatch for a in actions if a.kind == kind] == list(range(num_microbatches))
        held = peak = 0
        for action in actions:
            held += {"F": 1, "B": -(name != "zb_h1"), "W": -1}[action.kind]
            peak = max(peak, held)
        assert peak == live_microbatches(name, num_stages, stage, num_microbatches)
        if name in {"1f1b", "zb_h1"}:  # activations held at once: what makes both flat in the number of micro-batches
            assert peak <= num_stages


@given(num_stages=st.integers(1, 8), num_microbatches=st.integers(0, 30), num_chunks=st.integers(1, 4))
def test_interleaved_runs_every_chunk_of_every_microbatch_and_never_deadlocks(num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    order = compile_schedule(schedule_text("interleaved", num_stages, num_microbatches, num_chunks))
    assert len(order.steps) == len(set(order.steps)) == 2 * num_stages * num_microbatches * num_chunks


@given(st.lists(st.tuples(st.sampled_from("FBW"), st.integers(0, 999), st.integers(0, 9)), max_size=30))
def test_text_of_actions_parses_back(triples: list[tuple[str, int, int]]) -> None:
    actions = tuple(Action(*triple) for triple in triples)  # type: ignore[arg-type]
    assert parse(" ".join(str(action) for action in actions)) == actions


@pytest.mark.parametrize("word", ["F", "X1", "F-1", "0F", "F1a", "f0", "-1F0", "xF0", "1", "F0F1"])
def test_a_bad_word_is_named(word: str) -> None:
    with pytest.raises(UserError, match=word):
        parse(f"F0 {word}")


def test_an_unknown_schedule_names_the_allowed_ones() -> None:
    with pytest.raises(UserError, match="'2f2b'.*1f1b, gpipe, interleaved, zb_h1"):
        schedule_text("2f2b", 2, 2)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb_h1"])
def test_several_chunks_need_the_interleaved_schedule(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' cannot run 2 chunks.*'interleaved'"):
        schedule_text(name, 2, 4, 2)
