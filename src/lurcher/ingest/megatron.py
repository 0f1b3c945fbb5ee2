"""Megatron-LM and its descendants (Megatron-DeepSpeed, BLOOM): `iteration 71/ 100 | ... | elapsed time per iteration (ms): 5361.6 | ...`.

Format: NVIDIA/Megatron-LM, megatron/training/training.py, `training_log`; the seconds variant: bigscience-workshop/Megatron-DeepSpeed.
"""

from __future__ import annotations

import re

import numpy as np

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import UNITS_S, quantity
from lurcher.ingest.series import Series

_ITERATION = re.compile(r"iteration(\d{1,15})/\d+\|")
_ELAPSED = re.compile(r"elapsedtimeperiteration\((ms|s)\):([^|]*)\|")
_TOKENS = re.compile(r"consumedtokens:(\d{1,18})\|")
_BATCH = re.compile(r"globalbatchsize:(\d{1,12})\|")


def megatron() -> LineFormat:
    """The format; its time is a mean over the log interval, in the unit that its key names."""
    return LineFormat(
        name="megatron",
        marker=b"iteration ",
        start=re.compile(rb"(?<![A-Za-z])iteration\s+\d+/\s*\d+"),
        names=("duration_s", "consumed_tokens", "batch"),
        parse=_parse,
        finish=_finish,
        overlaps=frozenset({"deepspeed"}),
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    iteration, elapsed = _ITERATION.search(packed), _ELAPSED.search(packed)
    if iteration is None or elapsed is None:
        return None
    value = quantity(elapsed[2])
    if value is None:
        return None
    tokens, batch = _TOKENS.search(packed), _BATCH.search(packed)
    nan = float("nan")
    return int(iteration[1]), (value * UNITS_S[elapsed[1]], float(tokens[1]) if tokens else nan, float(batch[1]) if batch else nan)


def _finish(series: Series) -> Columns:
    values, notes = {"duration_s": series.column("duration_s")}, []
    steps = np.diff(np.unique(series.index))
    if len(steps) and np.median(steps) > 1:
        notes.append(f"one line is the mean of {int(np.median(steps))} iterations")
    consumed = series.column("consumed_tokens")
    if len(consumed) > 1 and np.isfinite(consumed).all():
        values["num_tokens"] = _per_iteration(series.index, consumed)
    batch = series.column("batch")
    known = np.isfinite(batch)
    changes = np.flatnonzero(np.diff(batch[known]) != 0)
    if len(changes):
        first = changes[0]
        index = series.index[known]
        notes.append(
            f"the global batch size changes {len(changes)} times (first at iteration {int(index[first + 1])}, {batch[known][first]:g} to {batch[known][first + 1]:g}): "
            "iterations then differ in work"
        )
    return Columns(values, tuple(notes))


def _per_iteration(index: np.ndarray, consumed: np.ndarray) -> np.ndarray:
    """Tokens of one iteration from the running total; where the total does not grow with the iterations (first line, restart), the next line's."""
    steps, grown = np.diff(index), np.diff(consumed)
    tokens = np.full(len(index), np.nan)
    good = (steps > 0) & (grown > 0)
    tokens[1:][good] = grown[good] / steps[good]
    for place in np.flatnonzero(np.isnan(tokens))[::-1]:
        tokens[place] = tokens[place + 1] if place + 1 < len(tokens) else tokens[place - 1]
    return tokens
