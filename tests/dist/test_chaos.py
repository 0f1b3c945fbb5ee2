"""A handful of the random strikes of bench/chaos.py, on sockets and on groups with NCCL's manners: jobs go on when the others hold the whole model,
the training stays the same, and nothing is left behind."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lurcher.layout import Layout

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]
SEEDS = {"local": (111,), "gloo": (22,), "fakenccl": (85, 114)}
"""All of one shape: a kill in a copy; three kills; a kill in a reconfiguration; a rank that blocks in a read."""


@pytest.fixture(scope="module")
def chaos() -> Iterator[ModuleType]:
    """bench/ is no package: its files find each other because a script's own folder is on the path, as it must be in the ranks' processes, too."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    import chaos

    yield chaos
    sys.path.pop(0)


@pytest.fixture(scope="module")
def references() -> dict:
    """Jobs without strikes. Whatever carries the bytes, the training is the same: one for all backends."""
    return {}


@pytest.mark.parametrize(("backend", "seed"), [(backend, seed) for backend, seeds in SEEDS.items() for seed in seeds])
def test_strikes_at_random_moments(backend, seed, chaos, references, tmp_path):
    row = chaos.run_seed(seed, references, str(tmp_path), backend)
    assert not row["wrong"], row


def test_every_scenario_can_be_drawn_and_spares_a_rank(chaos):
    from chaos_strikes import SCENARIOS, draw

    drawn = {}
    for seed in range(400):
        name, strikes = draw(random.Random(seed), 4, chaos.ITERATIONS)
        drawn[name] = strikes
        assert strikes and {rank for strike in strikes for rank in strike.ranks} < set(range(4))
        assert all(-1 <= strike.iteration < chaos.ITERATIONS - 2 for strike in strikes)
    assert set(drawn) == set(SCENARIOS)


def test_a_wrong_outcome_is_noticed(chaos, tmp_path):
    from chaos_judge import Loss, Seen, judge

    config = chaos.make_config(1, 1, 2, str(tmp_path), copy_every=0)
    layout = Layout.uniform(tp=1, pp=1, dp=2, num_layers=4, num_microbatches=8)
    reports = [SimpleNamespace(iteration=i, loss=2.0 - 0.1 * i, grad_norm=1.0) for i in range(chaos.ITERATIONS)]
    passed = [("committed", i) for i in range(chaos.ITERATIONS)]
    sound = Seen([], reports, passed, {})
    assert judge(config, sound, (), "done", sound) == ""
    assert "ended so" in judge(config, sound, (), "it died", sound)
    assert "when 0 was due" in judge(config, sound._replace(passed=passed[1:]), (), "done", sound)
    assert "done after 7" in judge(config, sound._replace(passed=passed[:-1]), (), "done", sound)
    assert "resumed when 3" in judge(config, sound._replace(passed=[*passed[:3], ("resumed", 2), *passed[2:]]), (), "done", sound)
    off = [*reports[:-1], SimpleNamespace(iteration=chaos.ITERATIONS - 1, loss=1.4, grad_norm=1.0)]
    assert "off by" in judge(config, sound._replace(reports=off), (), "done", sound)
    went_on = Loss((1,), layout, 3, None, went_on=True)
    with_loss = sound._replace(passed=[*passed[:3], ("resumed", 3), *passed[3:]])
    assert judge(config, with_loss._replace(losses=[went_on]), (1,), "done", sound) == ""
    assert "only [0] were struck" in judge(config, with_loss._replace(losses=[went_on]), (0,), "done", sound)
    gave_up = went_on._replace(went_on=False)
    assert "ended, which it must not" in judge(config, with_loss._replace(losses=[gave_up]), (1,), "died", sound)
    assert "went on, which it must not" in judge(config, with_loss._replace(losses=[went_on._replace(ranks=(0, 1))]), (0, 1), "done", sound)


def test_what_copies_hold_decides_where_the_survivors_lack_something(chaos, tmp_path):
    """Two stages: whoever dies was the last owner, and only a copy that somebody else holds lets the job go on."""
    from chaos_judge import Loss, Seen, judge

    config = chaos.make_config(1, 2, 1, str(tmp_path))
    layout = Layout.uniform(tp=1, pp=2, dp=1, num_layers=4, num_microbatches=8)
    reports = [SimpleNamespace(iteration=i, loss=2.0, grad_norm=1.0) for i in range(chaos.ITERATIONS)]
    whole = Seen([], reports, [], {})

    def verdict(holders, *, went_on: bool, ended: str) -> str:
        cut = None if holders is None else SimpleNamespace(iteration=2, layout=layout, holders=holders, gone=())
        passed = [("committed", i) for i in range(3)] + ([("resumed", 3)] + [("committed", i) for i in range(3, chaos.ITERATIONS)]) * went_on
        return judge(config, Seen([Loss((1,), layout, 3, cut, went_on)], reports, passed, {}), (1,), ended, whole)

    assert verdict(None, went_on=False, ended="rank 1 died") == ""
    assert "must not" in verdict(None, went_on=True, ended="done")
    assert verdict(((0, 1), (1, 0)), went_on=True, ended="done") == ""
    assert "must not" in verdict(((0, 1), (1, 0)), went_on=False, ended="rank 1 died")
    assert "must not" in verdict(((0, 1), (1, 1)), went_on=True, ended="done")  # the copy died with it


def test_what_is_left_behind_is_found(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    try:
        from chaos_judge import footprint, left_behind
    finally:
        sys.path.pop(0)
    import socket
    import subprocess

    before = footprint(tmp_path)
    assert left_behind(before, footprint(tmp_path)) == ""
    with socket.create_server(("127.0.0.1", 0)), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (tmp_path / "left").touch()
        found = left_behind(before, footprint(tmp_path))
        process.communicate(b"\n")
    assert str(process.pid) in found and "listening sockets ['tcp 0100007F:" in found and "left'" in found and "open files" in found
