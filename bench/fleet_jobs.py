"""Jobs with known truth for bench/fleet.py: seconds of each rank in each iteration, what all have in common, who is slow and who only seems so."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.rank_table import RankTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TUNING, REPORTING = 71_001, 82_001
"""Seeds: constants were chosen on series of the first, tables come from the second."""
COMMON = 0.03
"""Scatter of what all ranks have in common, one factor an iteration."""
OTHER_WORK_S = 0.2
"""What an iteration of a second takes beside the slowest rank's own work."""


class Slow(NamedTuple):
    """Ranks that are slow by a factor, in [begin, end); `column` says in what."""

    ranks: tuple[int, ...]
    factor: float
    begin: int
    end: int
    column: str = "busy_s"

    def costs(self, columns: dict[str, Floats]) -> float:
        """The excess as a share of an iteration of about a second."""
        return float(np.median(columns[self.column][: self.begin, self.ranks[0]])) * (self.factor - 1.0)


def generator(seed: int, *numbers: int) -> np.random.Generator:
    """Independent random numbers for each job of a seed."""
    return np.random.default_rng([seed, *numbers])


def own_noise(rng: np.random.Generator, num_rows: int, num_ranks: int, sigma: float | Floats, phi: float = 0.0, spikes: float = 0.0) -> Floats:
    """Factors around 1: normal, AR(1) with lag-1 correlation `phi`, and a share of samples that take up to twice as long."""
    values = rng.standard_normal((num_rows, num_ranks))
    if phi:
        values *= np.sqrt(1.0 - phi**2)
        for row in range(1, num_rows):
            values[row] += phi * values[row - 1]
    values *= sigma
    values += 1.0
    if spikes:
        hit = rng.random(values.shape) < spikes
        values[hit] *= 1.0 + rng.random(int(hit.sum()))
    return values


def fleet(
    rng: np.random.Generator, num_rows: int, num_ranks: int, sigma: float, spread: float = 0.03, phi: float = 0.0, spikes: float = 0.0
) -> Floats:
    """Busy seconds of a healthy job: own noise, common noise, and ranks that differ for good by `spread` (standard deviation, at most three)."""
    values = own_noise(rng, num_rows, num_ranks, sigma, phi, spikes)
    values *= 1.0 + COMMON * rng.standard_normal((num_rows, 1))
    values *= 1.0 + spread * np.clip(rng.standard_normal(num_ranks), -3.0, 3.0)
    return values


def table_of(columns: dict[str, Floats], first: int = 0) -> tuple[RankTable, Floats]:
    """The table that `lurcher analyze` makes of such rows, and the job's time: everybody waits for the slowest."""
    num_rows, num_ranks = columns["busy_s"].shape
    slowest = np.array([columns["busy_s"][row].max() for row in range(num_rows)])
    job = slowest + OTHER_WORK_S
    if "transfer_s" in columns:
        job += columns["transfer_s"].max(axis=1)
    iterations = np.arange(first, first + num_rows, dtype=np.int64)
    return RankTable(iterations, np.arange(num_ranks, dtype=np.int64), frozenset({*columns, "rank", "duration_s"}), columns.__getitem__), job


Trap = Literal["none", "shift", "stage", "rotate", "bursts"]


class Drawn(NamedTuple):
    """One simulated job: its columns, who is slow, and the trap that was laid."""

    columns: dict[str, Floats]
    slow: tuple[Slow, ...]
    trap: Trap


def draw(rng: np.random.Generator) -> Drawn:
    """A job of 4 to 256 ranks with a random amount of everything: noise, differences for good, faults of 5 to 100 %, and traps."""
    num_ranks = int(rng.choice([4, 8, 16, 32, 64, 256]))
    num_rows = int(rng.integers(150, 900))
    phi, spikes = float(rng.choice([0.0, 0.0, 0.5, 0.8])), float(rng.choice([0.0, 0.0, 0.01, 0.03]))
    sigma = np.exp(rng.uniform(np.log(0.004), np.log(0.05))) * rng.uniform(0.7, 1.5, num_ranks)
    busy = 0.8 * own_noise(rng, num_rows, num_ranks, sigma, phi, spikes) * (1.0 + COMMON * rng.standard_normal((num_rows, 1)))
    columns = {"busy_s": busy, "input_s": 0.05 * own_noise(rng, num_rows, num_ranks, 0.1), "host_s": 0.05 * own_noise(rng, num_rows, num_ranks, 0.1)}
    columns["transfer_s"] = 0.1 * own_noise(rng, num_rows, num_ranks, 0.05)
    busy *= 1.0 + float(rng.choice([0.0, 0.03, 0.15])) * np.clip(rng.standard_normal(num_ranks), -3.0, 3.0)
    if rng.random() < 0.2:
        busy[:, num_ranks - max(2, num_ranks // 4) :] *= 1.3  # a last stage
    slow = tuple(_fault(rng, columns) for _ in range(int(rng.choice([0, 1, 1, 1, 2]))))
    trap: Trap = rng.choice(np.array(["none", "shift", "stage", "rotate", "bursts"])).item()
    _lay(rng, trap, busy)
    return Drawn(columns, slow, trap)


def _fault(rng: np.random.Generator, columns: dict[str, Floats]) -> Slow:
    num_rows, num_ranks = columns["busy_s"].shape
    begin = int(rng.integers(20, num_rows - 15))
    end = num_rows if rng.random() < 0.3 else min(num_rows, begin + int(rng.integers(10, 300)))
    column = str(rng.choice(["busy_s", "busy_s", "busy_s", "input_s", "host_s", "transfer_s"]))
    rank = int(rng.integers(num_ranks))
    factor = 1.0 + float(np.exp(rng.uniform(np.log(0.05), 0.0)))
    if column == "busy_s":
        columns[column][begin:end, rank] *= factor
        if rng.random() < 0.3:  # a tensor mate's collectives smear: it takes up to half of the excess too
            columns[column][begin:end, rank ^ 1] *= 1.0 + rng.uniform(0.2, 0.5) * (factor - 1.0)
        return Slow((rank,), factor, begin, end, column)
    if column == "transfer_s":
        size = int(min(rng.choice([2, 2, 4, 8]), num_ranks // 2))
        first = rank // size * size
        factor = 1.0 + 3.0 * (factor - 1.0)
        columns[column][begin:end, first : first + size] *= factor
        return Slow(tuple(range(first, first + size)), factor, begin, end, column)
    late = 0.8 * (factor - 1.0)
    columns[column][begin:end, rank] += late
    columns["busy_s"][begin:end, rank] += late  # busy time contains it
    return Slow((rank,), 1.0 + late / 0.05, begin, end, column)


def _lay(rng: np.random.Generator, trap: Trap, busy: Floats) -> None:
    num_rows, num_ranks = busy.shape
    begin = int(rng.integers(20, num_rows - 15))
    if trap == "shift":
        busy[begin:] *= rng.uniform(0.7, 1.5)
    elif trap == "stage":  # a quarter of the ranks, two at least, is given more work, by a change that the input does not tell
        busy[begin:, : max(2, num_ranks // 4)] *= rng.uniform(1.05, 1.4)
    elif trap == "rotate":  # pauses of one to four iterations, another rank each time
        row = 0
        while row < num_rows:
            length = int(rng.integers(1, 5))
            busy[row : row + length, rng.integers(num_ranks)] *= rng.uniform(1.2, 3.0)
            row += length + int(rng.integers(0, 6))
    elif trap == "bursts":  # of up to six iterations, on one and the same rank
        rank = rng.integers(num_ranks)
        for row in rng.integers(20, num_rows, 5):
            busy[row : row + int(rng.integers(2, 7)), rank] *= rng.uniform(1.2, 3.0)
