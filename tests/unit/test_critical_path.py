"""The walk against an event-driven simulation written apart from it, against closed forms, and on broken schedules."""

from __future__ import annotations

import heapq
import random

import numpy as np
import pytest

from lurcher.errors import UserError
from lurcher.model.critical_path import Order, compile_schedule, finish_times, makespans_by_count, walk
from lurcher.model.schedule import SCHEDULES, schedule_text


def simulate(texts, durations, hop_s):  # type: ignore[no-untyped-def]
    """End time of each (stage, word): stages are processes, messages are events in one queue. Shares no code with the walk."""
    num_stages = len(texts)
    queue: list[tuple[float, int, int, str]] = []  # time, serial, stage, token that arrives
    serial = 0
    inbox: list[set[str]] = [set() for _ in texts]
    words = [text.split() for text in texts]
    busy, ends = [False] * num_stages, {}
    for s in range(num_stages):
        heapq.heappush(queue, (0.0, s, s, "go"))
    serial = num_stages
    while queue:
        now, _, s, token = heapq.heappop(queue)
        if token.startswith("end:"):
            word = token[4:]
            ends[s, word] = now
            busy[s] = False
            inbox[s].add(word)
            target = {"F": s + 1, "B": s - 1}.get(word[0], -1)
            if 0 <= target < num_stages:
                serial += 1
                heapq.heappush(queue, (now + hop_s, serial, target, "from:" + word))
        else:
            inbox[s].add(token)
        if not busy[s] and words[s]:
            word = words[s][0]
            need = {"F": {"from:" + word} if s else set(), "W": {"B" + word[1:]}}.get(word[0])
            if need is None:
                need = {"F" + word[1:]} | ({"from:" + word} if s < num_stages - 1 else set())
            if need <= inbox[s]:
                words[s].pop(0)
                busy[s] = True
                serial += 1
                heapq.heappush(queue, (now + durations[s, word], serial, s, "end:" + word))
    return ends


def random_texts(rng: random.Random, num_stages: int, num_microbatches: int, split_backward: bool) -> list[str]:
    """A random schedule that can run: drawn by executing random runnable actions one after the other."""
    done: set[tuple[int, str]] = set()
    texts: list[list[str]] = [[] for _ in range(num_stages)]
    left = {(s, f"{k}{m}") for s in range(num_stages) for k in ("FBW" if split_backward else "FB") for m in range(num_microbatches)}
    while left:

        def runnable(s: int, word: str) -> bool:
            if word[0] == "F":
                return s == 0 or (s - 1, word) in done
            if word[0] == "W":
                return (s, "B" + word[1:]) in done
            return (s, "F" + word[1:]) in done and (s == num_stages - 1 or (s + 1, word) in done)

        pick = rng.choice(sorted(entry for entry in left if runnable(*entry)))
        left.remove(pick)
        done.add(pick)
        texts[pick[0]].append(pick[1])
    return [" ".join(words) for words in texts]


def test_equals_the_event_driven_simulation_on_random_schedules() -> None:
    rng = random.Random(7)
    for case in range(250):
        num_stages, m = rng.randint(1, 6), rng.randint(1, 7)
        split_backward = case % 4 == 3
        name = rng.choice([*SCHEDULES, "random"]) if not split_backward else "random"
        texts = random_texts(rng, num_stages, m, split_backward) if name == "random" else list(schedule_text(name, num_stages, m))
        f, b, w = (np.array([[rng.uniform(0.1, 3.0) for _ in range(m)] for _ in range(num_stages)]) for _ in range(3))
        hop_s = rng.choice([0.0, rng.uniform(0.0, 1.0)])
        table = {"F": f, "B": b, "W": w}
        durations = {(s, word): table[word[0]][s, int(word[1:])] for s, text in enumerate(texts) for word in text.split()}
        truth = simulate(texts, durations, hop_s)
        order = compile_schedule(texts)
        timeline = finish_times(order, f, b, hop_s, w if split_backward else None)
        for i, step in enumerate(order.steps):
            assert timeline.ends_s[i] == pytest.approx(truth[step.stage, f"{step.kind}{step.microbatch}"]), (case, step)
            assert timeline.ends_s[i] - timeline.starts_s[i] == pytest.approx(table[step.kind][step.stage, step.microbatch])
        assert timeline.makespan_s == pytest.approx(max(truth.values()))


@pytest.mark.parametrize(("num_stages", "m"), [(1, 1), (2, 8), (4, 16), (8, 5), (16, 32)])
def test_uniform_stages_take_m_plus_p_minus_1_times_a_microbatch(num_stages: int, m: int) -> None:
    f, b = np.full((num_stages, m), 1.0), np.full((num_stages, m), 2.0)
    for name in SCHEDULES:
        assert walk(schedule_text(name, num_stages, m), f, b).makespan_s == pytest.approx((m + num_stages - 1) * 3.0)


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


@pytest.mark.parametrize("name", SCHEDULES)
def test_makespans_of_all_counts_equal_one_walk_each_and_grow(name: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        num_stages, max_m = int(rng.integers(1, 7)), int(rng.integers(0, 13))
        f, b = rng.uniform(0.1, 3, num_stages), rng.uniform(0.1, 3, num_stages)
        hop_s = float(rng.choice([0.0, 0.4]))
        found = makespans_by_count(name, f, b, max_m, hop_s)
        each = [
            float(walk(schedule_text(name, num_stages, m), np.repeat(f[:, None], m, 1), np.repeat(b[:, None], m, 1), hop_s).makespan_s)
            for m in range(max_m + 1)
        ]
        assert found == pytest.approx(each)
        lanes = makespans_by_count(name, np.stack([f, 2 * f]), np.stack([b, 2 * b]), max_m, 0.0)
        assert lanes[1] == pytest.approx(2 * lanes[0]) and lanes.shape == (2, max_m + 1)
        assert np.all(np.diff(found) > 0)  # the greedy split is exact only for monotone costs


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (("B0 F0",), "B0 of stage 0 waits for F0 of stage 0"),
        (("F0 B0 F1 B1", "F1 B1 F0 B0"), "B0 of stage 0 waits for B0 of stage 1"),
        (("F0 B0", "F0"), "stage 1 of the schedule never runs B0"),
        (("F0 F0 B0",), "runs F0 twice"),
        (("F0 W0 B0",), "W0 of stage 0 waits for B0"),
    ],
)
def test_a_schedule_that_cannot_run_names_the_action(texts: tuple[str, ...], named: str) -> None:
    with pytest.raises(UserError, match=named):
        compile_schedule(texts)


def test_split_backward_needs_its_durations() -> None:
    order: Order = compile_schedule(("F0 B0 W0",))
    with pytest.raises(ValueError, match="weight_s"):
        finish_times(order, np.ones((1, 1)), np.ones((1, 1)))
