"""Whether a job's training was that of a run without faults: every loss and gradient norm, and the state in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import NamedTuple

from lurcher.analyze.values import Verification
from lurcher.errors import LurcherError
from lurcher.runtime.sketch import state_errors

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
"""Of relative errors. Layouts differ in the order of their sums, which in float64 comes to 1e-14; in float32 to 2e-5 of the moments after 120 iterations with
five changes of layout, and to more in longer jobs, for training amplifies it. A wrong gradient or a step too many is off by far more than either."""


class Step(NamedTuple):
    """What an iteration came to."""

    loss: float
    grad_norm: float


def judge_sameness(
    seen: Sequence[Step],
    sketch: Mapping[str, tuple[float, ...]],
    expected: Sequence[Step],
    expected_sketch: Mapping[str, tuple[float, ...]],
    dtype: str,
) -> Verification:
    """Hold a job's iterations, of the first one on, and its last state against those of the run without faults."""
    loss = max((_error(one.loss, other.loss) for one, other in zip(seen, expected, strict=True)), default=0.0)
    norm = max((_error(one.grad_norm, other.grad_norm) for one, other in zip(seen, expected, strict=True)), default=0.0)
    lacking = ""
    try:
        state = state_errors(sketch, expected_sketch)
    except LurcherError as error:  # a rank that died after the last commit took its part along
        state, lacking = {"state": inf}, f"; {error}"
    tolerance = TOLERANCE[dtype]
    worst = max(loss, norm, *state.values())
    return Verification(
        same=worst <= tolerance,
        num_iterations=len(seen),
        tolerance=tolerance,
        loss_error=loss,
        norm_error=norm,
        state_errors=state,
        reason=f"{len(seen)} iterations against one process without faults: loss off by {loss:.1e} at most, gradient norm by {norm:.1e}, "
        + ", ".join(f"{kind} by {error:.1e}" for kind, error in state.items())
        + f"; {tolerance:g} is allowed{lacking}",
    )


def _error(seen: float, expected: float) -> float:
    error = abs(seen / expected - 1.0) if expected else abs(seen)
    return error if isfinite(error) else inf
