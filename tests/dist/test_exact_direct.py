"""The stage's sums over sockets: exact, the same bits everywhere, and never waiting without end. Ranks are threads here."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, Store

from lurcher.errors import DeadlineExpired, LurcherError
from lurcher.layout import LayerRange, Stage
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.direct import CHUNK_BYTES, LOOPBACK, DirectGroup
from lurcher.runtime.instruments import Instruments, NullDevice
from lurcher.runtime.tensor_parallel import TensorGroup

TIMEOUT_S = 20.0


def on_all(ranks: tuple[int, ...], work: Callable[[DirectGroup, int], Any], timeout_s: float = TIMEOUT_S, store: Store | None = None) -> list[Any]:
    """Results (or errors) of `work(group, rank)`, each rank in its own thread."""
    store = store or HashStore()

    def run(rank: int) -> Any:
        group = DirectGroup(ranks, rank, store, timeout_s)
        try:
            return work(group, rank)
        except (OSError, LurcherError) as error:
            return error
        finally:
            group.close()

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


@pytest.mark.parametrize("ranks", [(0, 1), (5, 2, 9), (3, 4, 5, 6)])
@pytest.mark.parametrize("num_elements", [1, 1000, 5 * CHUNK_BYTES])
def test_sums_are_those_in_rank_order_with_the_same_bits(ranks, num_elements):
    parts = {rank: torch.randn(num_elements, generator=torch.Generator().manual_seed(rank)) for rank in ranks}
    expected = sum((parts[rank] for rank in ranks[1:]), start=parts[ranks[0]])

    def work(group: DirectGroup, rank: int) -> torch.Tensor:
        for _ in range(3):
            tensor = parts[rank].clone()
            group.sum_in_place(tensor)
        return tensor

    for result in on_all(ranks, work):
        assert torch.equal(result, expected)


def test_a_peer_that_ends_is_noticed_at_once():
    def work(group: DirectGroup, rank: int) -> None:
        if rank == 0:
            group.sum_in_place(torch.ones(4))

    errors = on_all((0, 1), work)
    assert isinstance(errors[0], ConnectionResetError)
    assert "rank 1 closed" in str(errors[0])


def test_a_peer_that_does_not_come_is_waited_for_until_the_deadline():
    done = torch.zeros(1)

    def work(group: DirectGroup, rank: int) -> None:
        if rank == 0:
            try:
                group.sum_in_place(torch.ones(4))
            finally:
                done.fill_(1)
        while not done:
            pass

    errors = on_all((0, 1), work, timeout_s=0.2)
    assert isinstance(errors[0], DeadlineExpired)
    assert "rank 0 waited 0.2 s for rank 1" in str(errors[0])


def test_a_rank_that_never_connects_is_named():
    with pytest.raises(DeadlineExpired, match=r"ranks \[1\]"):
        DirectGroup((0, 1), 0, HashStore(), 0.1)


def test_a_stranger_who_connects_is_turned_away():
    store = HashStore()

    def intrude(rank: int) -> None:
        port = int(store.get("0").decode().split()[0])
        with socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S) as stranger:
            stranger.sendall(bytes(12))
            assert stranger.recv(1) == b""

    def join(rank: int) -> torch.Tensor:
        if rank == 1:
            intrude(rank)
        group = DirectGroup((0, 1), rank, store, TIMEOUT_S)
        tensor = torch.full((3,), float(rank + 1))
        group.sum_in_place(tensor)
        group.close()
        return tensor

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(join, (0, 1)):
            assert result.tolist() == [3.0, 3.0, 3.0]


def test_a_closed_group_says_so():
    def work(group: DirectGroup, rank: int) -> None:
        group.close()
        group.sum_in_place(torch.ones(1))

    for error in on_all((0, 1), work):
        assert isinstance(error, LurcherError)
        assert "closed with its generation" in str(error)


class Diary(NullDevice):
    """A device and a group that write down the order of things."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def exclude_ns(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.entries.append("exclude")

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self.entries.append("sum")


def test_a_chunk_finishes_just_before_its_last_sum():
    diary, recorder = Diary(), Recorder(1)
    beats: list[tuple[int, int]] = []
    instruments = Instruments(recorder, diary, lambda *beat: beats.append(beat))
    group = TensorGroup(Stage((0, 1), (1, 1), (LayerRange(0, 1),)), 1, diary, 7, instruments)
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
    group = TensorGroup(Stage((0, 1), (1, 1), (LayerRange(0, 1),)), 0, Diary(), 7, Instruments(Recorder(0), NullDevice(), lambda *_: None))
    group.begin_chunk(2, lambda: None)
    group.all_reduce(torch.ones(1))
    with pytest.raises(AssertionError, match="left out 1"):
        group.end_chunk()


def test_a_chunk_without_sums_finishes_at_its_end():
    entries: list[str] = []
    group = TensorGroup(Stage((0,), (1,), (LayerRange(0, 1),)), 0, None, -1, Instruments(Recorder(0), NullDevice(), lambda *_: None))
    group.begin_chunk(3, lambda: entries.append("finish"))
    assert torch.equal(group.all_gather(torch.ones(2)), torch.ones(1, 2))
    assert entries == []
    group.end_chunk()
    assert entries == ["finish"]
