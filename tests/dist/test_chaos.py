"""A handful of the random deaths of bench/chaos.py: jobs go on when the others hold the whole model, and the training stays the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]
SEEDS = (0, 2, 9)
"""Two deaths at once; one death; a death and a hang at once."""


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "chaos.py"
    spec = importlib.util.spec_from_file_location("bench_chaos", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def references() -> dict:
    return {}


@pytest.mark.parametrize("seed", SEEDS)
def test_deaths_and_hangs_at_random_moments(seed, chaos, references, tmp_path):
    row = chaos.run_seed(seed, references, str(tmp_path))
    assert not row["wrong"], row


def test_a_wrong_outcome_is_noticed(chaos, references, tmp_path):
    config = chaos.make_config(1, 1, 4, str(tmp_path))
    sound, ended = chaos.train(config)
    assert ended == "done" and chaos.judge(config, sound, ended, sound) == ""
    assert "iterations" in chaos.judge(config, _changed(sound, slice(1, None)), ended, sound)
    assert "ended so" in chaos.judge(config, sound, "it died", sound)
    other, _ = chaos.train(chaos.msgspec.structs.replace(config, job=chaos.msgspec.structs.replace(config.job, seed=12)))
    assert "off by" in chaos.judge(config, other, "done", sound)
    sound.losses.append(((0,), sound.reports[0].layout, False))
    assert "which it must not" in chaos.judge(config, sound, ended, sound)


def _changed(director, kept):
    copied = object.__new__(type(director))
    copied.__dict__.update(director.__dict__)
    copied.reports = director.reports[kept]
    return copied
