"""Column and key names of tables and JSON, and what they mean here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lurcher.ingest.quantity import split_unit

ITERATION_NAMES = ("iteration", "index", "step", "global_step", "_step", "iter")
"""What an iteration is called, best first."""
RANK_NAMES = ("rank", "global_rank", "worker")
COUNT_NAMES = {"num_tokens": "num_tokens", "tokens": "num_tokens", "sum_len_sq": "sum_len_sq"}
TIME_NAMES = {
    "duration": "duration_s",
    "elapsed": "duration_s",
    "iteration_time": "duration_s",
    "iter_time": "duration_s",
    "step_time": "duration_s",
    "time_per_iteration": "duration_s",
    "time_metrics/end_to_end": "duration_s",  # torchtitan
    "throughput/duration": "duration_s",  # Levanter
    "busy": "busy_s",
    "wait": "wait_s",
    "transfer": "transfer_s",
    "transfer_tp": "transfer_tp_s",
    "transfer_dp": "transfer_dp_s",
    "transfer_pp": "transfer_pp_s",
    "transfer_world": "transfer_world_s",
    "input": "input_s",
    "data_time": "input_s",
    "time_metrics/data_loading": "input_s",
    "throughput/loading_time": "input_s",
    "host": "host_s",
    "expected": "expected_s",
}
"""A time's name without its unit, and the column of records.ITERATION it fills."""


class Meaning(NamedTuple):
    """What the columns of a table are: positions, and for each column of ours the position and the factor that makes its unit ours."""

    iteration: int
    rank: int | None
    values: dict[str, tuple[int, float]]
    unitless: tuple[str, ...]


def meaning_of(names: Sequence[str]) -> Meaning | None:
    """What a table with these column names holds; None where an iteration or its duration is not among them."""
    plain = [name.strip().strip('"').lower() for name in names]
    iteration = next((plain.index(name) for name in ITERATION_NAMES if name in plain), None)
    rank = next((plain.index(name) for name in RANK_NAMES if name in plain), None)
    values: dict[str, tuple[int, float]] = {}
    unitless = []
    for place, name in enumerate(plain):
        stem, unit = split_unit(name)
        ours = COUNT_NAMES.get(name) or TIME_NAMES.get(stem)
        if ours is None or ours in values:
            continue
        values[ours] = (place, 1.0 if unit is None else unit)
        if unit is None and ours not in COUNT_NAMES.values():
            unitless.append(name)
    if iteration is None or "duration_s" not in values:
        return None
    return Meaning(iteration, rank, values, tuple(unitless))


def is_half_a_header(names: Sequence[str]) -> bool:
    """Column names with an iteration or a duration among them: meant as a table of iterations, so that what lacks can be said."""
    plain = [name.strip().strip('"').lower() for name in names]
    return any(name in ITERATION_NAMES for name in plain) or any(TIME_NAMES.get(split_unit(name)[0]) == "duration_s" for name in plain)
