"""The fake has NCCL's manners: what a peer's death, an abort and a watchdog do, seen from ranks that only use the process group."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from tests.fakenccl.backend import fake_backend
from tests.fakenccl.group import WATCHDOG_EXIT_CODE, FakeNccl
from tests.fakenccl.processes import in_turn, on_ranks
from torch.distributed import PrefixStore, Store

from lurcher.errors import DeadlineExpired
from lurcher.runtime.backend import Interrupted, Patience, never
from lurcher.runtime.gloo import GlooGroup, new_device
from lurcher.runtime.polling_store import PollingStore

pytestmark = [pytest.mark.timeout(90), pytest.mark.dist]
SOON_S = 20.0
LONG_ENOUGH_S = 0.3
"""For what never happens."""


def until_done(work, deadline_s: float = SOON_S) -> bool:
    deadline_s += time.monotonic()
    while not work.is_completed():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


def group_of(rank: int, store: Store, size: int, watchdog_s: float | None = None) -> FakeNccl:
    # As in the runtime: a thread that still connects must not hold up whoever else uses the store.
    return FakeNccl(PollingStore(PrefixStore("group", store), SOON_S, never), rank, size, new_device(), watchdog_s)


def sums_and_copies(rank: int, store: Store):
    size = 2
    group = group_of(rank, store, size)
    tensor = torch.full((4,), float(rank + 1))
    assert until_done(group.allreduce([tensor]))
    parts = [torch.empty(2) for _ in range(size)]
    assert until_done(group.allgather([parts], [torch.full((2,), float(rank))]))
    copied = torch.arange(3) * (rank + 1)
    assert until_done(group.broadcast([copied], 1))
    return tensor.tolist(), [part.tolist() for part in parts], copied.tolist()


def returns_at_enqueue(rank: int, store: Store):
    group = group_of(rank, store, 2)
    assert until_done(group.allreduce([torch.zeros(1)]))
    if rank == 1:
        store.wait(["looked"])
    tensor = torch.ones(3)
    work = group.allreduce([tensor])
    before = (work.is_completed(), work.wait(), work.is_completed(), bool(tensor.isnan().all()))
    store.set("looked", "")
    assert until_done(work)
    return before if rank == 0 else None, tensor.tolist()


def outlives_a_peer(rank: int, store: Store, size: int, how: str):
    group = group_of(rank, store, size)
    assert until_done(group.allreduce([torch.zeros(1)]))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(5)
    works = [group.allreduce([tensor]), group.broadcast([torch.ones(2, dtype=torch.int64)], 0)]
    never = [until_done(work, LONG_ENOUGH_S) for work in works]
    if how == "thread":
        aborter = threading.Thread(target=group.abort)
        aborter.start()
        aborter.join(SOON_S)
    else:
        group.abort()
    with pytest.raises(RuntimeError, match="aborted"):
        group.allreduce([tensor])
    return never, [until_done(work) for work in works], bool(tensor.isnan().all())


@pytest.mark.parametrize(("size", "how"), [(2, "self"), (4, "thread")])
def test_a_dead_peer_raises_nothing_and_only_an_abort_ends_it_with_garbage(size, how):
    *alive, dead = on_ranks(size, outlives_a_peer, size, how)
    assert dead.exit_code == -signal.SIGKILL
    for answer in alive:
        assert answer.value == ([False, False], [True, True], True)


def connects_lazily(rank: int, store: Store):
    group = group_of(rank, store, 2)
    if rank == 1:
        return None  # it never calls
    outcome: list[str] = []

    def call() -> None:
        try:
            group.allreduce([torch.ones(1)])
            outcome.append("returned")
        except RuntimeError:
            outcome.append("raised")

    caller = threading.Thread(target=call)
    caller.start()
    caller.join(LONG_ENOUGH_S)
    was_blocked = caller.is_alive()
    group.abort()
    caller.join(SOON_S)
    return was_blocked, caller.is_alive()


def a_send_that_nobody_takes(rank: int, store: Store):
    group = group_of(rank, store, 2)
    assert until_done(group.allreduce([torch.zeros(1)]))
    if rank == 1:
        store.wait(["looked"])
    work = group.broadcast([torch.ones(2)], 0)
    seen = rank == 0 and until_done(work, LONG_ENOUGH_S)
    store.set("looked", "")
    return seen, until_done(work)


@pytest.fixture(scope="module")
def pair() -> dict[str, list[Any]]:
    """What each of two ranks found, by work."""
    works = (sums_and_copies, returns_at_enqueue, connects_lazily, a_send_that_nobody_takes)
    first, second = on_ranks(2, in_turn, *works)
    return {work.__name__: [first.value[i], second.value[i]] for i, work in enumerate(works)}


def test_complete_calls_give_what_they_must(pair):
    assert pair["sums_and_copies"] == [([3.0] * 4, [[0.0] * 2, [1.0] * 2], [0, 2, 4])] * 2


def test_a_call_returns_at_enqueue_and_its_output_is_garbage_until_it_is_complete(pair):
    (first, sums), (_, others) = pair["returns_at_enqueue"]
    assert first == (False, True, False, True)
    assert sums == others == [2.0] * 3


def test_the_first_call_blocks_until_all_connect_and_an_abort_frees_it(pair):
    was_blocked, is_blocked = pair["connects_lazily"][0]
    assert was_blocked and not is_blocked


def test_a_send_is_complete_only_when_it_is_taken(pair):
    early, late = pair["a_send_that_nobody_takes"][0]
    assert late and not early


def is_watched(rank: int, store: Store):
    group = group_of(rank, store, 2, 1.5 if rank == 0 else None)
    assert until_done(group.allreduce([torch.zeros(1)]))
    if rank == 1:
        return "alive"
    return until_done(group.allreduce([torch.ones(1)]))  # which it does not live to see


def test_the_watchdog_ends_the_process_that_waits_too_long():
    first, second = on_ranks(2, is_watched)
    assert (first.value, first.exit_code) == (None, WATCHDOG_EXIT_CODE)
    assert second.value == "alive"


def waits_for_the_dead(rank: int, store: Store, kind: str):
    """What the runtime makes of it: the wait ends by deadline or interruption, and the abort leaves nothing that blocks."""
    flag: list[int] = []
    patience = Patience(0.4 if kind == "deadline" else SOON_S, SOON_S, lambda: bool(flag))
    handle = fake_backend().group((0, 1, 2), rank, PrefixStore("handle", store), patience)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    call = handle.all_reduce(torch.ones(2))
    if kind == "interrupted":
        threading.Timer(0.3, lambda: flag.append(1)).start()
    begin_s = time.monotonic()
    with pytest.raises(DeadlineExpired if kind == "deadline" else Interrupted):
        call.wait()
    waited_s = time.monotonic() - begin_s
    handle.close()
    return waited_s, time.monotonic() - begin_s - waited_s


@pytest.mark.parametrize("kind", ["deadline", "interrupted"])
def test_the_runtime_waits_neither_for_ever_nor_inside_the_group(kind):
    for answer in on_ranks(3, waits_for_the_dead, kind)[:2]:
        waited_s, close_s = answer.value
        assert 0.2 < waited_s < 5.0 and close_s < 1.0


def aborts_gloo(rank: int, store: Store):
    """gloo alone would wait for its own timeout, in its destructor as well."""
    group = GlooGroup(PrefixStore("gloo", store), rank, 3, SOON_S, SOON_S)
    if rank == 2:
        store.wait(["aborted"])  # it is alive, and takes no part
        return 0.0
    work = group.allreduce([torch.ones(4)])
    if rank == 0:
        time.sleep(0.2)
        begin_s = time.monotonic()
        group.abort()
        assert until_done(work, 2.0)
        del work
        store.set("aborted", "")
        return time.monotonic() - begin_s
    store.wait(["aborted"])
    group.abort()
    return 0.0


def test_a_gloo_group_can_be_aborted_while_a_peer_takes_no_part():
    assert on_ranks(3, aborts_gloo)[0].value < 1.0
