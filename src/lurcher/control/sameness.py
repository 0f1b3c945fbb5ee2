"""Whether a job's training was that of a run without faults: every loss and gradient norm, and the state in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import NamedTuple

from lurcher.analyze.values import Verification
from lurcher.runtime.sketch import state_errors

TOLERANCE = {"float64": 1e-9, "float32": 1e-2}
"""Of relative errors. The order of sums differs between layouts: in float64 that stays below 1e-12; in float32 AdamW makes 1e-3 of the moments' in some
hundred iterations, for it divides by their root. A wrong gradient or a step too many is off by more than either."""


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
    state = state_errors(sketch, expected_sketch)
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
        + f"; {tolerance:g} is allowed",
    )


def _error(seen: float, expected: float) -> float:
    error = abs(seen / expected - 1.0) if expected else abs(seen)
    return error if isfinite(error) else inf
