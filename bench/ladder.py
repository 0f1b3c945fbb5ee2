"""What the ladder's rules pay over the papers' faults, relative to the best in hindsight. Prints tables; `--json FILE` writes them.

72 settings: slow compute or communication, S4 of 30 or 100 min, a loss of 20 or 70 % of the healthy pace, mean duration 10, 24
or 72 min (GREYHOUND's three probes), log-normal (s = 1.5), Lomax (a = 1.5) or bimodal. S2 costs 5 s and leaves 15 % of a compute loss,
S3 costs 60 s and leaves 10 % (compute) or 35 % (communication), S4 leaves none; what they leave is an assumption. S2 cannot help against slow links.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from lurcher.plan.durations import Durations, episode_costs_s, learned_levels
from lurcher.plan.ladder import Level, worst_case
from lurcher.records import Cause
from tables import Row, show

Floats = NDArray[np.float64]

MEANS_S = (600.0, 1440.0, 4320.0)
LOSSES = (0.2, 0.7)
RESTARTS_S = (1800.0, 6000.0)
SHAPES = ("log-normal", "Lomax", "bimodal")
RHOS = (2.5, 3.0, 4.0)
DETECT_S, VALIDATE_S = 3.7, 6.86
"""GREYHOUND's time to a change point, and for profiling and validating it: end-to-end run on 256 GPUs."""

PROOF = {"delay_s": DETECT_S, "validate_s": VALIDATE_S}
ALSO_BY_THE_BEST = ", delay and proof paid, by the best too"


class Setting(NamedTuple):
    """One kind of fault. `leaves[k]` is the share of the loss that is left with k levels in force; `loss` is seconds lost per second."""

    cause: Cause
    levels: tuple[Level, ...]
    leaves: tuple[float, ...]
    loss: float
    mean_s: float
    shape: str

    @property
    def rates(self) -> tuple[float, ...]:
        """Seconds lost per second with k levels in force."""
        return tuple(self.loss * left for left in self.leaves)


def settings() -> list[Setting]:
    """All 72, 36 of each cause."""
    found = []
    for restart_s, loss, mean_s, shape in itertools.product(RESTARTS_S, LOSSES, MEANS_S, SHAPES):
        split, move, restart = Level("S2", 5.0), Level("S3", 60.0), Level("S4", restart_s)
        found.append(Setting("compute", (split, move, restart), (1.0, 0.15, 0.10, 0.0), loss, mean_s, shape))
        found.append(Setting("communication", (move, restart), (1.0, 0.35, 0.0), loss, mean_s, shape))
    return found


def draw(rng: np.random.Generator, shape: str, mean_s: float, count: int) -> Floats:
    """Durations in seconds with this mean; four in five of the bimodal ones are short, a quarter of the mean, the others four times it."""
    if shape == "log-normal":
        return np.asarray(np.exp(1.5 * rng.standard_normal(count)) * mean_s / np.exp(1.125))
    if shape == "Lomax":
        return np.asarray(0.5 * mean_s * rng.pareto(1.5, count))
    return np.asarray(np.where(rng.random(count) < 0.8, 0.25, 4.0) * mean_s * rng.uniform(0.8, 1.2, count))


def best_in_hindsight(setting: Setting, durations_s: Floats, *, delay_s: float = 0.0, validate_s: float = 0.0) -> Floats:
    """The cheapest single level taken at the onset, or none: nothing beats it where a dearer level leaves less.

    With `delay_s` and `validate_s` no level can be taken before the fault was seen and proven, and taking one costs the proof.
    """
    seen_s = np.minimum(durations_s, delay_s)
    best_s = setting.loss * durations_s
    for level, rate in zip(setting.levels, setting.rates[1:], strict=True):
        best_s = np.minimum(best_s, level.cost_s + validate_s + setting.loss * seen_s + rate * (durations_s - seen_s))
    return best_s


def pays(setting: Setting, levels: Sequence[Level], durations_s: Floats, *, delay_s: float = 0.0, validate_s: float = 0.0) -> Floats:
    """What the ladder pays for each episode. A fault shorter than `delay_s` is never seen; the others cost a validation first,
    and what they lost until then counts in the account, so no level is applied before."""
    costs_s = np.array([level.cost_s for level in levels])
    at_s = np.array([[max(level.at_s, delay_s * setting.loss) for level in levels]])
    return episode_costs_s(costs_s, at_s, setting.rates, durations_s)[0] + validate_s * (durations_s > delay_s)


def pays_learning(setting: Setting, rho: float, durations_s: Floats, assumed: Durations, *, delay_s: float = 0.0, validate_s: float = 0.0) -> Floats:
    """One episode after the other, the thresholds fitted anew to those before it: at each of the first, and then ever more rarely."""
    paid, levels = np.zeros(len(durations_s)), setting.levels
    for i, duration_s in enumerate(durations_s):
        if i < 4 or i % min(i // 4, 20) == 0:
            levels = learned_levels(setting.levels, setting.rates, assumed, rho)
        paid[i] = pays(setting, levels, durations_s[i : i + 1], delay_s=delay_s, validate_s=validate_s)[0]
        assumed = assumed.after(float(duration_s))
    return paid


def ratios(num_episodes: int, seed: int, rhos: Sequence[float] = RHOS) -> list[Row]:
    """Mean cost over the mean of the best in hindsight, per rule and cause: mean and maximum over the settings."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    worst: dict[tuple[str, str], float] = {}
    for setting in settings():
        durations_s = draw(rng, setting.shape, setting.mean_s, num_episodes)
        known = Durations.of(setting.cause)
        rules = {
            "never act": setting.loss * durations_s,
            "first level at once, then nothing": setting.levels[0].cost_s + setting.rates[1] * durations_s,
            "break-even (Algorithm 1)": pays(setting, setting.levels, durations_s),
            "break-even, delay and proof paid": (proven := pays(setting, setting.levels, durations_s, **PROOF)),
            "break-even" + ALSO_BY_THE_BEST: proven,
            "learned, rho 3, delay and proof paid": (proven := pays_learning(setting, 3.0, durations_s, known, **PROOF)),
            "learned, rho 3" + ALSO_BY_THE_BEST: proven,
        }
        for rho in rhos:
            rules[f"learned, rho {rho:g}"] = pays_learning(setting, rho, durations_s, known)
        rules["learned, rho 3, first mean 3 times too long"] = pays_learning(setting, 3.0, durations_s, Durations(3 * setting.mean_s))
        for name, paid_s in rules.items():
            key = name, setting.cause
            best_s = best_in_hindsight(setting, durations_s, **(PROOF if name.endswith(ALSO_BY_THE_BEST) else {}))
            found.setdefault(key, []).append((float(paid_s.sum() / best_s.sum()), float(np.mean(paid_s / best_s))))
            worst[key] = max(worst.get(key, 0.0), float(np.max(paid_s / best_s)))
    rows: list[Row] = []
    for (name, cause), values in sorted(found.items(), key=lambda item: item[0][1] != "compute"):
        of_means, means_of = np.array(values).T
        rows.append(
            {
                "rule": name,
                "cause": cause,
                "mean": float(of_means.mean()),
                "max": float(of_means.max()),
                "mean of an episode's ratio": float(means_of.mean()),
                "worst episode": worst[name, cause],
            }
        )
    return rows


def promises() -> list[Row]:
    """The worst case that each rule promises for S2, S3, S4 and for levels that cost the same."""
    rows: list[Row] = []
    for setting in settings()[:2]:
        row: Row = {"levels": " ".join(f"{level.name} {level.cost_s:g} s" for level in setting.levels), "break-even": worst_case(setting.levels)}
        for rho in RHOS:
            row[f"learned, rho {rho:g}"] = worst_case(learned_levels(setting.levels, setting.rates, Durations.of(setting.cause), rho))
        rows.append(row)
    for count in (1, 2, 3, 4):
        rows.append({"levels": f"{count} of equal cost", "break-even": worst_case([Level("x", 1.0)] * count)})
    return rows


def main() -> None:
    """Run and show both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="50 episodes a setting instead of 1,000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    num_episodes = 50 if args.quick else 1000
    result = {"cost over the best in hindsight": ratios(num_episodes, args.seed), "worst case": promises()}
    console = Console(width=160)
    for title, rows in result.items():
        show(console, title, rows)
    if args.json:
        args.json.write_text(json.dumps({"episodes": num_episodes, "seed": args.seed, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
