"""Sketches of a state, and the judgement whether a job's training was that of a run without faults."""

from __future__ import annotations

import numpy as np
import pytest

from lurcher.control.sameness import TOLERANCE, Step, judge_sameness
from lurcher.errors import LurcherError
from lurcher.runtime.sketch import sketch_atoms, state_errors

ATOMS, SIZE = 6, 500


@pytest.fixture
def values():
    return np.random.default_rng(3).standard_normal((ATOMS, SIZE))


def test_a_tensor_has_one_sketch_however_it_is_cut(values):
    whole = sketch_atoms("param", "head", 0, values)
    assert whole == sketch_atoms("param", "head", 0, values[:2]) | sketch_atoms("param", "head", 2, values[2:])
    assert len(whole) == ATOMS


def test_atoms_and_tensors_have_directions_of_their_own(values):
    same = np.broadcast_to(values[0], values.shape)
    one, other = sketch_atoms("param", "head", 0, same), sketch_atoms("param", "embed", 0, same)
    assert len({*one.values(), *other.values()}) == 2 * ATOMS


@pytest.mark.parametrize("change", [1e-3, 1e-6, 1e-9])
def test_the_error_is_about_the_length_of_the_difference(values, change):
    """Held against the Euclidean norm, for one changed element and for all of an atom's."""
    rng = np.random.default_rng(7)
    for num_changed in (1, SIZE):
        ratios = []
        for _ in range(20):
            other = values.copy()
            other[4, :num_changed] += change * rng.standard_normal(num_changed)
            error = state_errors(sketch_atoms("param", "head", 0, other), sketch_atoms("param", "head", 0, values))["param"]
            ratios.append(error * np.abs(values).max() / np.linalg.norm(other[4] - values[4]))
        assert 0.7 < np.sqrt(np.mean(np.square(ratios))) < 1.4 if num_changed > 1 else min(ratios) > 0.1


def test_kinds_are_told_apart_and_measured_against_their_own_tensor(values):
    small = 1e-6 * values
    expected = sketch_atoms("param", "head", 0, values) | sketch_atoms("exp_avg", "head", 0, small)
    seen = sketch_atoms("param", "head", 0, values) | sketch_atoms("exp_avg", "head", 0, 1.5 * small)
    errors = state_errors(seen, expected)
    assert errors["param"] == 0.0 and errors["exp_avg"] > 0.5


def test_what_is_not_finite_or_not_there_is_never_the_same(values):
    expected = sketch_atoms("param", "head", 0, values)
    broken = values.copy()
    broken[1, 1] = np.nan
    assert state_errors(sketch_atoms("param", "head", 0, broken), expected)["param"] == np.inf
    with pytest.raises(LurcherError, match=r"param/head\[5\] among them"):
        state_errors(sketch_atoms("param", "head", 0, values[:5]), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_worst_error_decides(values, dtype):
    steps, sketch = [Step(2.0, 1.0), Step(1.5, 0.5)], sketch_atoms("param", "head", 0, values)
    same = judge_sameness(steps, sketch, steps, sketch, dtype)
    assert same.same and same.num_iterations == 2 and same.state_errors == {"param": 0.0}
    for factor, is_same in ((0.5, True), (2.0, False)):
        error = factor * TOLERANCE[dtype]
        off = [steps[0], Step(1.5 * (1.0 + error), 0.5)]
        judged = judge_sameness(off, sketch, steps, sketch, dtype)
        assert judged.same is is_same and judged.loss_error == pytest.approx(error, rel=1e-5)
        assert judge_sameness([steps[0], Step(1.5, 0.5 * (1.0 + error))], sketch, steps, sketch, dtype).same is is_same
    assert not judge_sameness(steps, sketch_atoms("param", "head", 0, 1.5 * values), steps, sketch, dtype).same
    assert not judge_sameness([steps[0], Step(float("nan"), 0.5)], sketch, steps, sketch, dtype).same
    assert f"{TOLERANCE[dtype]:g} is allowed" in same.reason


def test_a_state_of_which_a_part_is_lost_is_judged_too(values):
    whole, part = sketch_atoms("param", "head", 0, values), sketch_atoms("param", "head", 0, values[:5])
    judged = judge_sameness([Step(2.0, 1.0)], part, [Step(2.0, 1.0)], whole, "float64")
    assert not judged.same and judged.loss_error == 0.0 and "in one of two states only" in judged.reason
