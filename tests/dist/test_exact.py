"""Under every layout and every change of the split the training is that of one plain torch process."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from comparison import owners_of_slices, worst_error
from reference import Trained, train
from spawned import Job, RankResult, run_jobs, run_rank

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, OptimSection
from lurcher.errors import LurcherError
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.probe.recorder import Recorder
from lurcher.records import Op
from lurcher.runtime.engine import Engine
from lurcher.runtime.instruments import NullDevice

NUM_MICROBATCHES = 8
NUM_LAYERS = 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


def make_config(dtype: str = "float64", *, tied: bool = False, schedule: str = "1f1b", bucketed: bool = False) -> JobConfig:
    return JobConfig(
        job=JobSection(dtype=dtype, seed=3, bucketed=bucketed),
        layout=LayoutSection(num_microbatches=NUM_MICROBATCHES, schedule=schedule),
        model=ModelSection(
            num_layers=NUM_LAYERS, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32, tied=tied
        ),
        optim=OptimSection(warmup_iterations=4),
    )


def uniform(tp: int, pp: int, dp: int, split: tuple[int, ...] | None = None) -> Layout:
    layout = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=NUM_LAYERS, num_microbatches=NUM_MICROBATCHES)
    return layout if split is None else layout.with_split(split)


def built(split: tuple[int, ...], *replicas: list[tuple[int, tuple[int, ...]]]) -> Layout:
    """A layout by hand: per replica its stages as (layers, shares); ranks are numbered through."""
    rank, made = 0, []
    for stages, microbatches in zip(replicas, split, strict=True):
        layer, parts = 0, []
        for num_layers, shares in stages:
            parts.append(Stage(tuple(range(rank, rank + len(shares))), shares, (LayerRange(layer, layer + num_layers),)))
            rank, layer = rank + len(shares), layer + num_layers
        made.append(Replica(tuple(parts), microbatches))
    return Layout(NUM_LAYERS, NUM_MICROBATCHES, tuple(made))


TP2 = (1, 1)
JOBS = [
    Job("tp2pp2dp2", make_config(), uniform(2, 2, 2)),
    Job("tp2pp2dp2-float32", make_config("float32"), uniform(2, 2, 2)),
    Job("tp2pp2dp2-tied-5-3", make_config(tied=True), uniform(2, 2, 2, (5, 3))),
    Job("tp2pp2dp2-float32-splits-change", make_config("float32"), uniform(2, 2, 2), splits=((3, (5, 3)), (6, (8, 0)), (8, (1, 7)))),
    Job(
        "tp2pp2dp2-layers-3-1-splits-change",
        make_config(bucketed=True),
        built((4, 4), [(3, TP2), (1, TP2)], [(3, TP2), (1, TP2)]),
        splits=((4, (6, 2)),),
    ),
    Job("tp2pp2-tied-gpipe", make_config(tied=True, schedule="gpipe"), uniform(2, 2, 1)),
    Job("pp2dp2-layers-differ-5-3", make_config(), built((5, 3), [(3, (1,)), (1, (1,))], [(1, (1,)), (3, (1,))])),
    Job("tp2dp2-tied", make_config(tied=True), uniform(2, 1, 2, (3, 5))),
    Job("pp4-gpipe-float32", make_config("float32", schedule="gpipe"), uniform(1, 4, 1)),
    Job("tp2", make_config(), uniform(2, 1, 1)),
    Job("pp2-tied", make_config(tied=True), uniform(1, 2, 1)),
    Job("dp2-split-changes", make_config(), uniform(1, 1, 2), splits=((5, (0, 8)),)),
    Job("tp-differs-7-ranks", make_config(), built((5, 3), [(2, TP2), (2, TP2)], [(1, (1,)), (3, TP2)])),
    Job("tp3-to-tp1-beside-tp2-tied", make_config(tied=True), built((2, 6), [(1, (1, 1, 1)), (3, (1,))], [(4, (2, 1))])),
    Job("alone", make_config(), uniform(1, 1, 1)),
]
SPAWNED = [job for job in JOBS if len(job.layout.ranks) > 1]
BY_NAME = {job.name: job for job in JOBS}
every_job = pytest.mark.parametrize("name", list(BY_NAME))


@pytest.fixture(scope="module")
def results() -> dict[str, dict[int, RankResult]]:
    """All jobs, run by one set of processes; the job of one rank needs none."""
    return run_jobs(SPAWNED) | {"alone": {0: run_rank(BY_NAME["alone"], 0, None)}}


@pytest.fixture(scope="module")
def references() -> dict[bytes, Trained]:
    """What one plain torch process makes of each different job."""
    torch.set_num_threads(1)
    found: dict[bytes, Trained] = {}
    for job in JOBS:
        key = key_of(job)
        if key not in found:
            found[key] = train(job.config, job.iterations)
    return found


def key_of(job: Job) -> bytes:
    return msgspec.json.encode((job.config.model, job.config.job))


@every_job
def test_state_equals_the_single_process(name, results, references):
    job = BY_NAME[name]
    errors = worst_error(results[name], references[key_of(job)])
    print(name, {kind: f"{error:.1e}" for kind, error in errors.items()})
    assert set(errors) == {"param", "grad", "exp_avg", "exp_avg_sq"}
    assert max(errors.values()) <= TOLERANCE[job.config.job.dtype], errors


@every_job
def test_losses_and_norms_equal_the_single_process_and_have_the_same_bits_on_all_ranks(name, results, references):
    reference = references[key_of(BY_NAME[name])]
    first = results[name][0]
    tolerance = TOLERANCE[BY_NAME[name].config.job.dtype]
    np.testing.assert_allclose(first.losses, reference.losses, rtol=tolerance)
    np.testing.assert_allclose(first.norms, reference.norms, rtol=tolerance)
    assert first.losses[-1] < first.losses[0]
    for result in results[name].values():
        assert result.losses == first.losses
        assert result.norms == first.norms


@every_job
def test_all_owners_of_a_slice_hold_the_same_bits(name, results):
    num_owners = owners_of_slices(results[name])
    if len(BY_NAME[name].layout.replicas) > 1:
        assert min(num_owners.values()) >= 2


@every_job
def test_samples_and_learning_rate_never_depend_on_the_layout(name, results, references):
    job = BY_NAME[name]
    layout = job.layout
    for iteration in range(job.iterations):
        layout = job.layout_at(iteration, layout)
        for result in results[name].values():
            assert result.rates[iteration] == pytest.approx(references[key_of(job)].rates[iteration], rel=1e-12)
        for op in (Op.FORWARD, Op.BACKWARD):
            for layer in range(NUM_LAYERS):
                run = [
                    int(seq)
                    for d, replica in enumerate(layout.replicas)
                    for seq in _seqs(results[name][replica.stages[layout.stage_of_layer(d, layer)].ranks[0]], iteration, op)
                ]
                assert sorted(run) == list(range(NUM_MICROBATCHES))


def _seqs(result: RankResult, iteration: int, op: Op) -> list[int]:
    events = result.events[iteration]
    return events["seq"][events["op"] == op].tolist()


@every_job
def test_collectives_are_numbered_alike_on_all_ranks_of_their_group(name, results):
    layout = BY_NAME[name].layout
    for group in layout.groups():
        calls: dict[int, list[tuple]] = {}
        for rank in group.ranks if len(group.ranks) > 1 else ():
            events = np.concatenate(results[name][rank].events)
            mine = events[(events["group"] == group.id) & (events["op"] == Op.ALL_REDUCE)]
            calls[rank] = [(int(e["seq"]), int(e["num_bytes"])) for e in mine]
            assert len(set(calls[rank])) == len(calls[rank])
        if group.kind in ("tp", "dp") and calls:
            assert len({tuple(c) for c in calls.values()}) == 1
        # Unlike owner sets share the world's numbers; whoever uses a number uses it for the same sum.
        assert all(len({n for c in calls.values() for s, n in c if s == seq}) == 1 for seq in {s for c in calls.values() for s, _ in c})


@every_job
def test_every_transfer_has_two_ends(name, results):
    sent, received = Counter(), Counter()
    for rank, result in results[name].items():
        for e in np.concatenate(result.events):
            if e["op"] == Op.SEND:
                sent[(rank, int(e["peer"]), int(e["seq"]), int(e["num_bytes"]))] += 1
            elif e["op"] == Op.RECV:
                received[(int(e["peer"]), rank, int(e["seq"]), int(e["num_bytes"]))] += 1
    assert sent == received
    assert not sent or max(sent.values()) == 1


def test_a_changed_split_is_a_new_generation_on_every_rank(results):
    name = "tp2pp2dp2-float32-splits-change"
    steps = {tuple(g - r.generations[0] for g in r.generations) for r in results[name].values()}
    assert steps == {(0, 0, 0, 1, 1, 1, 2, 2, 3, 3)}


@pytest.fixture
def lone_engine() -> Engine:
    job = BY_NAME["alone"]
    return Engine(job.config, job.layout, 0, None, Recorder(0), NullDevice(), lambda i, c: None, 1.0)


def test_a_layout_with_another_global_batch_is_refused(lone_engine):
    other = Layout.uniform(tp=1, pp=1, dp=1, num_layers=NUM_LAYERS, num_microbatches=NUM_MICROBATCHES + 1)
    with pytest.raises(LurcherError, match="the global batch never changes"):
        lone_engine.adopt(other)


def test_nothing_can_be_stepped_on_after_a_discard(lone_engine):
    before = lone_engine.digests()
    first = lone_engine.compute(0)
    lone_engine.discard()
    with pytest.raises(LurcherError, match="no finite gradients"):
        lone_engine.step(0)
    assert lone_engine.digests() == before
    assert lone_engine.compute(0) == first
    lone_engine.step(0)
    assert lone_engine.num_steps == 1
    assert lone_engine.digests() != before


def test_several_ranks_without_a_store_are_refused():
    job = BY_NAME["alone"]
    with pytest.raises(LurcherError, match="needs a store"):
        Engine(job.config, uniform(2, 1, 1), 0, None, Recorder(0), NullDevice(), lambda i, c: None, 1.0)


class Announcing(NullDevice):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def begin(self) -> None:
        self.calls.append(("begin",))

    def finish(self, *work) -> None:
        self.calls.append(("finish", *work))


def test_the_device_is_told_each_chunk_once_with_its_layers_and_lengths():
    job = BY_NAME["alone"]
    device = Announcing()
    engine = Engine(job.config, job.layout, 0, None, Recorder(0), device, lambda i, c: None, 1.0)
    engine.compute(2)
    assert [call[0] for call in device.calls] == ["begin", "finish"] * (2 * NUM_MICROBATCHES)
    pace = job.config.pace
    layers = {Op.FORWARD: NUM_LAYERS, Op.BACKWARD: NUM_LAYERS + pace.head_layers * (1 + 1 / pace.backward_ratio)}  # the head works in backward
    rows = engine.workload(2)
    told = [call[1:] for call in device.calls[1::2]]
    expected = [(op, 2, layers[op], 1.0, int(w["num_tokens"]), int(w["sum_len_sq"])) for w in rows for op in (Op.FORWARD, Op.BACKWARD)]
    assert told == expected
