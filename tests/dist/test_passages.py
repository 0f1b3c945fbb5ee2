"""Tensors that pass between two stages arrive with the same bits on every receiver, and cross once where the degrees differ. Threads stand for ranks."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

import pytest
import torch

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.instruments import Instruments, NullDevice
from lurcher.runtime.passages import Passages

SHAPE = (5, 3)
DEADLINE_S = 20.0


class Mail:
    """What ranks have sent, by (source, target, number)."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int, int], torch.Tensor] = {}
        self.num_elements: Counter[tuple[int, int]] = Counter()
        self.changed = threading.Condition()


class FakeLinks:
    """Links of one rank over a Mail."""

    def __init__(self, rank: int, mail: Mail) -> None:
        self._rank, self._mail = rank, mail

    def send(self, rank: int, kind: int, seq: int, tensor: torch.Tensor) -> None:
        with self._mail.changed:
            assert (self._rank, rank, seq) not in self._mail.sent
            self._mail.sent[self._rank, rank, seq] = tensor.clone()
            self._mail.num_elements[self._rank, rank] += tensor.numel()
            self._mail.changed.notify_all()

    def receive(self, rank: int, kind: int, seq: int, like: torch.Tensor) -> torch.Tensor:
        key = (rank, self._rank, seq)
        with self._mail.changed:
            assert self._mail.changed.wait_for(lambda: key in self._mail.sent, DEADLINE_S)
            found = self._mail.sent.pop(key)
        assert (found.shape, found.dtype) == (like.shape, like.dtype)
        return found


def layout_of(a: int, b: int) -> Layout:
    left, right = tuple(range(a)), tuple(range(a, a + b))
    stages = (Stage(left, (1,) * a, (LayerRange(0, 1),)), Stage(right, (1,) * b, (LayerRange(1, 2),)))
    return Layout(2, 1, (Replica(stages, 1),))


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 2), (1, 2), (2, 1), (1, 4), (4, 1), (2, 3), (3, 2), (4, 3), (2, 4)])
def test_every_receiver_gets_the_same_bits_and_a_mixed_border_is_crossed_once(a: int, b: int) -> None:
    layout, mail = layout_of(a, b), Mail()
    tensors = {0: torch.rand(SHAPE, dtype=torch.float64), 1: torch.rand(SHAPE, dtype=torch.float64)}
    received: dict[int, torch.Tensor] = {}
    recorders = {rank: Recorder(rank) for rank in layout.ranks}

    def act(rank: int) -> None:
        own = layout.position(rank).pp
        instruments = Instruments(recorders[rank], NullDevice(), lambda *_: None)
        passages = Passages(layout, rank, [(0, 1 - own)], FakeLinks(rank, mail), SHAPE, torch.float64, instruments)
        passages.send(tensors[own], (0, 1 - own), own)
        received[rank] = passages.receive((0, 1 - own), 1 - own)

    threads = [threading.Thread(target=act, args=(rank,)) for rank in layout.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    for rank in layout.ranks:
        assert torch.equal(received[rank], tensors[1 - layout.position(rank).pp])
    assert mail.sent == {}
    crossed = {way: sum(n for (x, y), n in mail.num_elements.items() if (x < a) != (y < a) and (x < a) == way) for way in (True, False)}
    assert set(crossed.values()) == {SHAPE[0] * SHAPE[1] * (a if a == b else 1)}
    gathers = defaultdict(set)
    for rank, recorder in recorders.items():
        events = recorder.drain()
        for e in events[events["op"] == Op.ALL_GATHER]:
            gathers[int(e["group"]), int(e["seq"])].add((rank, int(e["num_bytes"])))
    whole_bytes = 8 * SHAPE[0] * SHAPE[1]
    mates = [stage.ranks for stage in layout.replicas[0].stages if a != b and stage.tp_size > 1]
    assert sorted(gathers.values(), key=sorted) == [{(rank, whole_bytes) for rank in ranks} for ranks in mates]


def test_what_stays_in_a_stage_is_handed_over_as_it_is() -> None:
    passages = Passages(layout_of(1, 1), 0, [(0, 0), (0, 1)], None, SHAPE, torch.float64, Instruments(Recorder(0), NullDevice(), lambda *_: None))
    tensor = torch.ones(SHAPE, dtype=torch.float64)
    passages.send(tensor, (0, 0), 7)
    assert passages.receive((0, 0), 7) is tensor
    passages.send(tensor, (0, 0), 8)
    passages.begin_iteration()
    with pytest.raises(KeyError):
        passages.receive((0, 0), 8)
