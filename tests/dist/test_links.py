"""Sums and messages over sockets: exact, the same bits everywhere, and never waiting without end. Ranks are threads here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, Store

from lurcher.errors import DeadlineExpired, LurcherError
from lurcher.layout import LayerRange, Stage
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.backend import Interrupted
from lurcher.runtime.instruments import Instruments, NullDevice
from lurcher.runtime.links import HOP, Links
from lurcher.runtime.tensor_parallel import TensorGroup

TIMEOUT_S = 20.0
LARGE = 300_000
"""Elements: more bytes than a socket's buffers hold."""


def on_all(ranks: tuple[int, ...], work: Callable[[Links, int], Any], timeout_s: float = TIMEOUT_S, store: Store | None = None) -> list[Any]:
    """Results (or errors) of `work(links, rank)`, each rank in its own thread, each linked with all others."""
    store = store or HashStore()

    def run(rank: int) -> Any:
        links = Links(rank, set(ranks) - {rank}, store, timeout_s, TIMEOUT_S)
        try:
            return work(links, rank)
        except (OSError, LurcherError) as error:
            return error
        finally:
            links.close()

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def part_of(rank: int, num_elements: int) -> torch.Tensor:
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("ranks", [(0, 1), (5, 2, 9), (3, 4, 5, 6)])
@pytest.mark.parametrize("num_elements", [1, 1000, LARGE])
def test_sums_are_those_in_rank_order_with_the_same_bits(ranks, num_elements):
    parts = {rank: part_of(rank, num_elements) for rank in ranks}
    expected = sum((parts[rank] for rank in ranks[1:]), start=parts[ranks[0]])

    def work(links: Links, rank: int) -> torch.Tensor:
        for _ in range(3):
            tensor = parts[rank].clone()
            links.sum_in_place(ranks, tensor)
        return tensor

    for result in on_all(ranks, work):
        assert torch.equal(result, expected)


def test_a_gather_keeps_the_order_of_the_ranks():
    ranks = (4, 2, 7)

    def work(links: Links, rank: int) -> list[float]:
        return [part.item() for part in links.gather(ranks, torch.full((1,), float(rank)))]

    assert on_all(ranks, work) == [[4.0, 2.0, 7.0]] * 3


@pytest.mark.parametrize("num_elements", [3, LARGE])
def test_messages_are_found_by_their_number_in_any_order(num_elements):
    numbers = (7, 3, 5)

    def work(links: Links, rank: int) -> list[bool]:
        other = 1 - rank
        for number in numbers:
            links.send(other, HOP, number, part_of(number, num_elements))
        like = torch.empty(num_elements)
        return [torch.equal(links.receive(other, HOP, number, like), part_of(number, num_elements)) for number in sorted(numbers)]

    assert on_all((0, 1), work) == [[True] * 3] * 2


def test_a_ring_of_ranks_that_all_send_more_than_a_socket_holds_before_they_receive_gets_through():
    ranks = (0, 1, 2, 3)

    def work(links: Links, rank: int) -> bool:
        links.send((rank + 1) % 4, HOP, 0, part_of(rank, LARGE))
        links.sum_in_place((rank & 2, rank | 1) if rank % 2 == 0 else (rank - 1, rank), torch.ones(LARGE))
        before = (rank - 1) % 4
        return torch.equal(links.receive(before, HOP, 0, torch.empty(LARGE)), part_of(before, LARGE))

    assert on_all(ranks, work) == [True] * 4


def test_shape_and_dtype_are_kept():
    def work(links: Links, rank: int) -> torch.Tensor:
        links.send(1 - rank, HOP, 0, torch.arange(6, dtype=torch.float64).view(2, 3))
        return links.receive(1 - rank, HOP, 0, torch.empty(2, 3, dtype=torch.float64))

    for result in on_all((0, 1), work):
        assert torch.equal(result, torch.arange(6, dtype=torch.float64).view(2, 3))


def test_a_peer_that_ends_is_noticed_at_once():
    def work(links: Links, rank: int) -> None:
        if rank == 0:
            links.sum_in_place((0, 1), torch.ones(4))

    errors = on_all((0, 1), work)
    assert isinstance(errors[0], ConnectionResetError)
    assert "rank 1 closed" in str(errors[0])


def test_a_peer_that_does_not_come_is_waited_for_until_the_deadline():
    done = threading.Event()

    def work(links: Links, rank: int) -> None:
        if rank == 1:
            assert done.wait(TIMEOUT_S)
            return
        try:
            links.sum_in_place((0, 1), torch.ones(4))
        finally:
            done.set()

    errors = on_all((0, 1), work, timeout_s=0.2)
    assert isinstance(errors[0], DeadlineExpired)
    assert "rank 0 waited for rank 1 for 0.2 s" in str(errors[0])


def test_a_peer_that_takes_nothing_is_sent_to_until_the_deadline():
    done = threading.Event()

    def work(links: Links, rank: int) -> None:
        if rank == 1:
            assert done.wait(TIMEOUT_S)
            return
        try:
            links.send(1, HOP, 0, torch.ones(50 * LARGE))
        finally:
            done.set()

    errors = on_all((0, 1), work, timeout_s=0.2)
    assert isinstance(errors[0], DeadlineExpired)
    assert "rank 0 could not send to rank 1 for 0.2 s" in str(errors[0])


def test_a_rank_that_never_connects_is_named():
    with pytest.raises(DeadlineExpired, match=r"ranks \[1\]"):
        Links(0, {1}, HashStore(), TIMEOUT_S, 0.1)


@pytest.mark.parametrize("waits_for", ["a message", "a peer that takes nothing", "a connection"])
def test_an_interruption_ends_a_wait_long_before_its_deadline(waits_for):
    interrupted, done = threading.Event(), threading.Event()

    def join(rank: int) -> str:
        with closing(Links(rank, {1 - rank}, store, TIMEOUT_S, TIMEOUT_S, interrupted.is_set)) as links:
            if rank == 1:
                assert done.wait(TIMEOUT_S)
                return "peer"
            threading.Timer(0.1, interrupted.set).start()
            if waits_for == "a message":
                links.receive(1, HOP, 0, torch.empty(1))
            links.send(1, HOP, 0, torch.ones(50 * LARGE))
            return "went on"

    store, begin_s = HashStore(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(join, 0)
        if waits_for == "a connection":
            threading.Timer(0.1, interrupted.set).start()
        else:
            pool.submit(join, 1)
        with pytest.raises(Interrupted, match="rank 0"):
            first.result()
        done.set()
    assert time.monotonic() - begin_s < TIMEOUT_S / 2


def test_a_stranger_who_connects_is_turned_away():
    store = HashStore()

    def join(rank: int) -> torch.Tensor:
        if rank == 1:
            name = bytes.fromhex(store.get("0").decode().split()[0])
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.settimeout(TIMEOUT_S)
                stranger.connect(b"\0" + name)
                stranger.sendall(bytes(12))
                assert stranger.recv(1) == b""
        links = Links(rank, {1 - rank}, store, TIMEOUT_S, TIMEOUT_S)
        tensor = torch.full((3,), float(rank + 1))
        links.sum_in_place((0, 1), tensor)
        links.close()
        return tensor

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(join, (0, 1)):
            assert result.tolist() == [3.0, 3.0, 3.0]


def test_closed_links_say_so():
    def work(links: Links, rank: int) -> None:
        links.close()
        links.sum_in_place((0, 1), torch.ones(1))

    for error in on_all((0, 1), work):
        assert isinstance(error, LurcherError)
        assert "closed with their generation" in str(error)


class Diary(NullDevice):
    """A device and a group that write down the order of things."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def exclude_ns(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.entries.append("exclude")

    def sum_in_place(self, ranks: tuple[int, ...], tensor: torch.Tensor) -> None:
        assert ranks == (0, 1)
        self.entries.append("sum")


def test_a_chunk_finishes_just_before_its_last_sum():
    diary, recorder = Diary(), Recorder(1)
    beats: list[tuple[int, int]] = []
    instruments = Instruments(recorder, diary, lambda *beat: beats.append(beat))
    group = TensorGroup(Stage((0, 1), (1, 1), (LayerRange(0, 1),)), diary, 7, instruments)
    for _ in range(2):
        group.begin_chunk(3, lambda: diary.entries.append("finish"))
        for _ in range(3):
            group.all_reduce(torch.ones(4))
        group.end_chunk()
    assert diary.entries == ["sum", "exclude", "sum", "exclude", "finish", "sum"] * 2
    events = recorder.drain()
    assert events["seq"].tolist() == list(range(6))
    assert set(zip(events["group"].tolist(), events["op"].tolist(), events["num_bytes"].tolist(), strict=True)) == {(7, int(Op.ALL_REDUCE), 16)}
    assert len(beats) == 6


def test_a_chunk_that_leaves_out_a_sum_is_a_programming_error():
    group = TensorGroup(Stage((0, 1), (1, 1), (LayerRange(0, 1),)), Diary(), 7, Instruments(Recorder(0), NullDevice(), lambda *_: None))
    group.begin_chunk(2, lambda: None)
    group.all_reduce(torch.ones(1))
    with pytest.raises(AssertionError, match="left out 1"):
        group.end_chunk()


def test_a_chunk_without_sums_finishes_at_its_end():
    entries: list[str] = []
    group = TensorGroup(Stage((0,), (1,), (LayerRange(0, 1),)), None, -1, Instruments(Recorder(0), NullDevice(), lambda *_: None))
    group.begin_chunk(3, lambda: entries.append("finish"))
    assert torch.equal(group.all_gather(torch.ones(2)), torch.ones(1, 2))
    assert entries == []
    group.end_chunk()
    assert entries == ["finish"]
