"""Schedules as text: known small cases, and properties that hold for every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.model.schedule import SCHEDULES, Action, parse, schedule_text


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


@given(name=st.sampled_from(SCHEDULES), num_stages=st.integers(1, 9), num_microbatches=st.integers(0, 20))
def test_each_stage_runs_each_microbatch_forward_then_backward(name: str, num_stages: int, num_microbatches: int) -> None:
    for stage, text in enumerate(schedule_text(name, num_stages, num_microbatches)):
        actions = parse(text)
        forwards = [a.microbatch for a in actions if a.kind == "F"]
        backwards = [a.microbatch for a in actions if a.kind == "B"]
        assert forwards == backwards == list(range(num_microbatches))
        held = peak = 0
        for action in actions:
            held += 1 if action.kind == "F" else -1
            peak = max(peak, held)
        if name == "1f1b":  # activations held at once: what makes 1F1B flat in the number of micro-batches
            assert peak == min(num_stages - stage, num_microbatches)


@given(st.lists(st.tuples(st.sampled_from("FBW"), st.integers(0, 999)), max_size=30))
def test_text_of_actions_parses_back(pairs: list[tuple[str, int]]) -> None:
    actions = tuple(Action(kind, number) for kind, number in pairs)  # type: ignore[arg-type]
    assert parse(" ".join(str(action) for action in actions)) == actions


@pytest.mark.parametrize("word", ["F", "X1", "F-1", "0F", "F1a", "f0"])
def test_a_bad_word_is_named(word: str) -> None:
    with pytest.raises(UserError, match=word):
        parse(f"F0 {word}")


def test_an_unknown_schedule_names_the_allowed_ones() -> None:
    with pytest.raises(UserError, match="'2f2b'.*1f1b, gpipe"):
        schedule_text("2f2b", 2, 2)
