"""The walk against an event-driven simulation written apart from it, against closed forms, and on broken schedules."""

from __future__ import annotations

import random

import numpy as np
import pytest
from event_walk import plain_paths, random_texts, simulate, split_word

from lurcher.errors import UserError
from lurcher.model.critical_path import finish_times, makespans, makespans_by_count, walk
from lurcher.model.order import Order, compile_schedule
from lurcher.model.schedule import SCHEDULES, SPLIT_BACKWARD, schedule_text


def weight_of(name: str, weight_s):  # type: ignore[no-untyped-def]
    """Weight durations where the schedule takes them."""
    return weight_s if name in SPLIT_BACKWARD else None


def test_equals_the_event_driven_simulation_on_random_schedules() -> None:
    rng = random.Random(7)
    for case in range(400):
        num_stages, m = rng.randint(1, 5), rng.randint(1, 7)
        name = rng.choice([*SCHEDULES, "random", "random FBW"])
        chunks = rng.randint(1, 3) if name in {"interleaved", "random", "random FBW"} else 1
        split = name in SPLIT_BACKWARD or name == "random FBW"
        paths = plain_paths(num_stages, m, chunks)
        if name.startswith("random"):
            drawn = random_texts(rng, range(num_stages), paths, split)
            texts = [drawn[s] for s in range(num_stages)]
        else:
            texts = list(schedule_text(name, num_stages, m, chunks))
        rows = num_stages * chunks
        f, b, w = (np.array([[rng.uniform(0.1, 3.0) for _ in range(m)] for _ in range(rows)]) for _ in range(3))
        hops = [rng.choice([0.0, rng.uniform(0.0, 1.0)]) for _ in range(rows - 1)]
        given = np.array(hops)
        if hops and rng.random() < 0.5:
            hops, given = [hops[0]] * (rows - 1), hops[0]  # one number for all borders
        table = {"F": f, "B": b, "W": w}
        order = compile_schedule(texts)
        timeline = finish_times(order, f, b, given, w if split else None)

        def seconds(stage, word, table=table, num_stages=num_stages):  # type: ignore[no-untyped-def]
            kind, microbatch, chunk = split_word(word)
            return table[kind][chunk * num_stages + stage, microbatch]

        truth = simulate(dict(enumerate(texts)), paths, seconds, lambda m, k, hops=hops: hops[k])
        for i, step in enumerate(order.steps):
            word = f"{step.chunk or ''}{step.kind}{step.microbatch}"
            assert timeline.ends_s[i] == pytest.approx(truth[step.stage, word]), (case, name, step)
            assert timeline.ends_s[i] - timeline.starts_s[i] == pytest.approx(seconds(step.stage, word))
        assert timeline.makespan_s == pytest.approx(max(truth.values()))
        assert makespans(order, f, b, given, w if split else None) == timeline.makespan_s


@pytest.mark.parametrize(("num_stages", "m"), [(1, 1), (2, 8), (4, 16), (8, 5), (16, 32)])
def test_uniform_stages_take_m_plus_p_minus_1_times_a_microbatch(num_stages: int, m: int) -> None:
    f, b = np.full((num_stages, m), 1.0), np.full((num_stages, m), 2.0)
    for name in ("1f1b", "gpipe", "interleaved"):
        assert walk(schedule_text(name, num_stages, m), f, b).makespan_s == pytest.approx((m + num_stages - 1) * 3.0)


@pytest.mark.parametrize(("num_stages", "m"), [(1, 1), (2, 2), (2, 8), (4, 4), (4, 16), (8, 9), (16, 32)])
@pytest.mark.parametrize(("f", "b", "w"), [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8)])
def test_zb_h1_has_the_bubble_that_its_paper_gives(num_stages: int, m: int, f: float, b: float, w: float) -> None:
    """arXiv 2401.10241, table 1 of section 2.3: (P - 1)(F + B - W), against (P - 1)(F + B + W) of 1F1B with the merged backward."""
    one = np.ones((num_stages, 1))
    order = compile_schedule(schedule_text("zb_h1", num_stages, m))
    assert makespans(order, f * one, b * one, 0.0, w * one) == pytest.approx(m * (f + b + w) + (num_stages - 1) * (f + b - w))


@pytest.mark.parametrize(("num_stages", "m", "num_chunks"), [(2, 4, 2), (4, 8, 2), (4, 16, 4), (8, 16, 3), (1, 3, 2)])
def test_interleaved_divides_the_bubble_by_the_chunks(num_stages: int, m: int, num_chunks: int) -> None:
    """arXiv 2104.04473, section 2.2: the bubble is (P - 1)(F + B) / v, F and B of the whole stage."""
    one = np.ones((num_stages * num_chunks, 1))
    order = compile_schedule(schedule_text("interleaved", num_stages, m, num_chunks))
    assert makespans(order, one, 2 * one) == pytest.approx(3 * m * num_chunks + 3 * (num_stages - 1))


def test_one_slow_stage_costs_less_than_the_formula_says() -> None:
    """planning.md, corrections that bind: P4 m8, one stage x2, B = 2F: (m + P - 1) t is 1.25x too high."""
    f = np.ones((4, 8))
    f[1] = 2.0
    assert 11 * 6.0 / walk(schedule_text("1f1b", 4, 8), f, 2 * f).makespan_s == pytest.approx(1.25, abs=0.03)


def test_lanes_are_independent() -> None:
    rng = np.random.default_rng(3)
    texts = schedule_text("1f1b", 4, 6)
    f, b = rng.uniform(1, 2, (2, 5, 4, 6)), rng.uniform(1, 2, (2, 5, 4, 6))
    many = walk(texts, f, b, 0.1)
    assert many.makespan_s.shape == (2, 5) and many.ends_s.shape == (2, 5, 48)
    for i in range(2):
        for j in range(5):
            alone = walk(texts, f[i, j], b[i, j], 0.1)
            assert np.array_equal(alone.ends_s, many.ends_s[i, j])
            assert alone.makespan_s == many.makespan_s[i, j]


def test_no_microbatches_take_no_time() -> None:
    assert np.array_equal(walk(("", ""), np.zeros((3, 2, 0)), np.zeros((3, 2, 0))).makespan_s, np.zeros(3))


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("interleaved", 1), ("interleaved", 2)])
def test_makespans_of_all_counts_equal_one_walk_each_and_grow(name: str, chunks: int) -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        num_stages, max_m = int(rng.integers(1, 7)), int(rng.integers(0, 13))
        f, b, w = rng.uniform(0.1, 3, (3, num_stages * chunks))
        hop_s = rng.uniform(0, 0.5, num_stages * chunks - 1) if rng.random() < 0.5 else float(rng.choice([0.0, 0.4]))
        found = makespans_by_count(name, f, b, max_m, hop_s, weight_s=weight_of(name, w), num_chunks=chunks)
        each = [0.0]
        for m in range(1, max_m + 1):
            parts = [np.repeat(part[:, None], m, 1) for part in (f, b, w)]
            each.append(float(walk(schedule_text(name, num_stages, m, chunks), *parts[:2], hop_s, weight_of(name, parts[2])).makespan_s))
        assert found == pytest.approx(np.maximum.accumulate(each))
        if chunks == 1:
            assert found == pytest.approx(each)
        lanes = makespans_by_count(
            name, np.stack([f, 2 * f]), np.stack([b, 2 * b]), max_m, weight_s=weight_of(name, np.stack([w, 2 * w])), num_chunks=chunks
        )
        assert lanes[1] == pytest.approx(2 * lanes[0]) and lanes.shape == (2, max_m + 1)
        assert np.all(np.diff(found) > 0 if chunks == 1 else np.diff(found) >= 0)  # the greedy split is exact only for monotone costs


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb_h1"])
def test_a_dead_stage_takes_for_ever_with_any_work(name: str) -> None:
    f = np.array([[1.0, 1.0], [1.0, np.inf]])
    found = makespans_by_count(name, f, f, 3, weight_s=weight_of(name, f))
    assert np.isfinite(found[0]).all() and found[1].tolist() == [0.0, np.inf, np.inf, np.inf]


def test_alike_microbatches_may_be_given_once() -> None:
    rng = np.random.default_rng(2)
    f, b, w, hops = (rng.uniform(0.1, 2, (5, 4, n)) for n in (1, 1, 1, 3))
    order = compile_schedule(schedule_text("zb_h1", 4, 6))
    wide = [np.repeat(part, 6, axis=2) for part in (f, b, w)]
    assert np.array_equal(makespans(order, f, b, hops[:, 0], w), makespans(order, wide[0], wide[1], hops[:, 0], wide[2]))


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (("B0 F0",), "B0 of stage 0 waits for F0 of stage 0"),
        (("F0 B0 F1 B1", "F1 B1 F0 B0"), "B0 of stage 0 waits for B0 of stage 1"),
        (("F0 B0", "F0"), "stage 1 of the schedule never runs B0"),
        (("F0 F0 B0",), "runs F0 twice"),
        (("F0 W0 B0",), "W0 of stage 0 waits for B0"),
        (("F0 1F0 1B0 B0", "1F0 F0 1B0 B0"), "1F0 of stage 0 waits for F0 of stage 1"),
        (("F0 1F0 1B0 B0", "F0 B0"), "stage 1 of the schedule never runs 1B0"),
    ],
)
def test_a_schedule_that_cannot_run_names_the_action(texts: tuple[str, ...], named: str) -> None:
    with pytest.raises(UserError, match=named):
        compile_schedule(texts)


def test_split_backward_needs_its_durations() -> None:
    order: Order = compile_schedule(("F0 B0 W0",))
    with pytest.raises(ValueError, match="weight_s"):
        finish_times(order, np.ones((1, 1)), np.ones((1, 1)))
