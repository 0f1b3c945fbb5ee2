"""The training engine of one rank: tensor, pipeline and data parallelism by hand, the same training under every layout.

`compute` ends at the norm collective; whether the iteration counts is decided outside, and `step` or `discard` obeys. So no
rank ever steps on gradients that another one did not have.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import PrefixStore, Store

from lurcher.config import JobConfig
from lurcher.errors import LurcherError
from lurcher.layout import Layout
from lurcher.model.program import joints, tasks
from lurcher.model.schedule import SPLIT_BACKWARD
from lurcher.probe.recorder import Recorder
from lurcher.records import BenchResult, Op
from lurcher.runtime.adamw import AdamW
from lurcher.runtime.backend import Backend, Link, Patience, never
from lurcher.runtime.backends import LocalBackend
from lurcher.runtime.context import Tables
from lurcher.runtime.copies import held_at, moves_back
from lurcher.runtime.data import Loader
from lurcher.runtime.gradients import GradientSync
from lurcher.runtime.groups import Groups
from lurcher.runtime.head import vocabulary_rows
from lurcher.runtime.instruments import Device, Instruments
from lurcher.runtime.kept import Kept
from lurcher.runtime.link_bench import bench_links
from lurcher.runtime.messages import Cut
from lurcher.runtime.migrate import Source, refill
from lurcher.runtime.owners import Slice, cut_slices, slices_of
from lurcher.runtime.passages import Passages
from lurcher.runtime.pipeline import Pipeline
from lurcher.runtime.shapes import Held, check_model, held_tensors, tensor_specs
from lurcher.runtime.sketch import Sketch, sketch_atoms
from lurcher.runtime.stage import StageModel
from lurcher.runtime.storage import Storage, arranged
from lurcher.runtime.tensor_parallel import TensorGroup
from lurcher.runtime.transfer import STATES, Move, least_moves, without
from lurcher.runtime.wires import Wires
from lurcher.validate.rounds import Round


class StepResult(msgspec.Struct, frozen=True):
    """What an iteration came to, with the same bits on every rank: mean loss per micro-batch and norm over the whole model.

    Where anything was not finite, `finite` is False on all ranks and both figures are NaN.
    """

    loss: float
    grad_norm: float
    finite: bool


class _Work(NamedTuple):
    """What a working rank does in an iteration."""

    pipeline: Pipeline
    sync: GradientSync


class _Staged(NamedTuple):
    """A layout that was prepared, with what it needs; groups and storage are those in force where they stay. `cut` is what all go back to, if so."""

    layout: Layout
    slices: tuple[Slice, ...]
    held: tuple[Held, ...]
    groups: Groups
    storage: Storage
    cut: Cut | None


class Engine:
    """One rank's state and how it computes with it.

    `store` is where the ranks of a generation meet (None for a job of one rank); every blocking wait for another rank ends
    after `timeout_s`, to connect for a change of layout after `connect_s`, and at once when it finds `interrupted()`: then the generation's
    groups are aborted and Interrupted is raised. `progress(iteration, chunks begun)` is called at every chunk and before each wait.
    `backend` carries the bytes between ranks; None: LocalBackend.
    `num_steps` is more than 0 for a rank that comes in the midst of a job: so many steps were taken before it. `wires`: emulated links, if any.
    """

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        rank: int,
        store: Store | None,
        recorder: Recorder,
        device: Device,
        progress: Callable[[int, int], None],
        timeout_s: float,
        connect_s: float | None = None,
        backend: Backend | None = None,
        interrupted: Callable[[], bool] = never,
        num_steps: int = 0,
        wires: Wires | None = None,
    ) -> None:
        check_model(config.model, layout)
        _check_supported(layout, config.layout.schedule)
        self._config, self._rank, self._store = config, rank, store
        self._backend = LocalBackend() if backend is None else backend
        self._patience = Patience(timeout_s, timeout_s if connect_s is None else connect_s, interrupted)
        job, model = config.job, config.model
        self._dtype = torch.float64 if job.dtype == "float64" else torch.float32
        self._instruments = Instruments(recorder, device, progress, wires)
        self._instruments.begin_generation(layout.generation)
        self._loader = Loader(job.corpus, job.seed, model.seq_len, layout.num_microbatches, bucketed=job.bucketed)
        self._layout, self._slices, self._held = layout, cut_slices(model, layout), held_tensors(model, layout, rank)
        self._storage = Storage(self._held, slices_of(self._slices, rank), self._dtype)
        self._storage.fill_initial(model, job.seed)
        self._optimizer = AdamW(config.optim, self._storage, num_steps)
        self._groups = Groups(model, layout, rank, store, self._backend, Patience(timeout_s, timeout_s, interrupted))
        self._work = self._wire(layout)
        self._result: StepResult | None = None
        self._staged: _Staged | None = None
        self._kept = Kept(model, rank)
        self._copy_links: tuple[Mapping[int, int], Link] | None = None
        self.received_bytes = 0
        self.plan = ""

    @property
    def layout(self) -> Layout:
        """The layout of the present generation."""
        return self._layout

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self._optimizer.num_steps

    @property
    def copy_bytes(self) -> int:
        """Memory that the kept cuts take: what this rank holds and what it keeps for another, twice."""
        return self._kept.num_bytes

    def learning_rate(self, iteration: int) -> float:
        """The rate of that iteration's step, under every layout."""
        return self._optimizer.learning_rate(iteration)

    def compute(self, iteration: int) -> StepResult:
        """Forward and backward of this rank's part, gradients summed over their owners, norm and loss agreed on. Takes no step.

        A standby rank computes nothing, and knows neither loss nor norm (NaN); its step only counts.
        """
        self._instruments.begin_iteration(iteration)
        self._storage.grad.zero_()
        if self._work is None:
            self._result = StepResult(math.nan, math.nan, True)
            return self._result
        self._result = None
        with torch.inference_mode():
            totals = self._work.sync.run(self._work.pipeline.run(iteration))
        self._groups.complete()
        self._result = StepResult(totals.loss, totals.grad_norm, totals.finite)
        return self._result

    def step(self, iteration: int) -> None:
        """Clip and step on what `compute` left; a local act."""
        if self._result is None or not self._result.finite:
            raise LurcherError(f"rank {self._rank} has no finite gradients of iteration {iteration} to step on; compute it first")
        start_ns = time.monotonic_ns()
        with torch.inference_mode():
            self._optimizer.step(iteration, self._result.grad_norm)
        self._instruments.own_work(Op.OPTIMIZER, iteration, start_ns)
        self._result = None
        self._kept.confirm()

    def discard(self) -> None:
        """Forget the gradients: the iteration does not count."""
        self._storage.grad.zero_()
        self._result = None

    def keep_copy(self, iteration: int, holders: Mapping[int, int]) -> int:
        """Keep the state after `iteration` committed iterations, here and, rank by rank, at its holder; returns the bytes received.

        Every member calls it with the same `holders`. The newest two cuts stay; the last one that all have survives a peer's death meanwhile.
        """
        if iteration != self.num_steps:
            raise LurcherError(f"rank {self._rank} has taken {self.num_steps} steps; it cannot keep the state after {iteration} iterations")
        self._instruments.beat()
        links = self._links_to_holders(iteration, holders)
        num_bytes = self._kept.keep(iteration, self._layout, self._slices, self._storage, holders, links)
        self._instruments.beat()
        return num_bytes

    def bench_links(self, iteration: int, rounds: Sequence[Round]) -> tuple[BenchResult, ...]:
        """The rounds of links that this rank takes part in, after `iteration`; raises nothing where another rank does not answer."""
        if not any(self._rank in pair for one in rounds for pair in one):
            return ()
        self._instruments.beat()
        name = f"gen{self._layout.generation}/bench{iteration}"
        patience = self._patience._replace(timeout_s=self._patience.connect_s)
        return bench_links(self._rank, rounds, lambda peers: self._links(peers, name, patience), self._instruments.wires, iteration)

    def prepare(self, layout: Layout, lost: Collection[int] = (), cut: Cut | None = None) -> None:
        """Get all that `layout` needs beside what there is: connections, and the atoms that this rank lacks. Nothing is given up yet.

        `lost` ranks hold nothing any more. With a `cut` the state to come is that of the cut: what this rank kept, and what others did.
        Every other rank of both layouts must call it; it can be called again, for another layout, where it failed. `received_bytes` is
        then what this rank received, `plan` a hash of who owns what and of all moves: the same on all ranks.
        """
        model = self._config.model
        check_model(model, layout)
        _check_supported(layout, self._config.layout.schedule)
        if layout.num_microbatches != self._layout.num_microbatches:
            raise LurcherError(
                f"generation {layout.generation} has {layout.num_microbatches} micro-batches an iteration instead of {self._layout.num_microbatches};"
                " the global batch never changes"
            )
        self._drop_staged()
        keeps_groups = not lost and self._groups.is_open and self._groups.fits(layout)
        groups = self._groups if keeps_groups else Groups(model, layout, self._rank, self._store, self._backend, self._patience)
        slices, held = cut_slices(model, layout), held_tensors(model, layout, self._rank)
        self._staged = _Staged(layout, slices, held, groups, self._storage, cut)
        self.received_bytes, self.plan = 0, _hash_of(slices, ())
        if cut is not None:
            self._staged = self._staged._replace(storage=self._restored(layout, slices, held, lost, cut))
        elif slices != self._slices:
            self._staged = self._staged._replace(storage=self._moved(layout.generation, slices, held, lost))

    def switch(self) -> None:
        """Go on under the layout that was prepared, and give up what only the old one needed. A local act."""
        if self._staged is None:
            raise LurcherError(f"rank {self._rank} has no layout prepared to switch to")
        layout, self._slices, self._held, groups, storage, cut = self._staged
        self._staged = None
        if groups is not self._groups:
            self._close_connections()
        self._layout, self._groups, self._storage = layout, groups, storage
        if cut is not None:
            self._kept.go_back(cut)
        self._optimizer.adopt(storage, self.num_steps if cut is None else cut.iteration)
        self._instruments.begin_generation(layout.generation)
        self._work = self._wire(layout)
        self.discard()

    def adopt(self, layout: Layout) -> None:
        """`prepare` and `switch`, where nobody can be lost in between."""
        self.prepare(layout)
        self.switch()

    def abandon(self) -> None:
        """Let all connections go, so that whoever waits for this rank is told; the state stays."""
        self._drop_staged()
        self._close_connections()
        self._kept.doubt()

    def _drop_staged(self) -> None:
        if self._staged is not None and self._staged.groups is not self._groups:
            self._staged.groups.close()
        self._staged = None

    def _close_connections(self) -> None:
        self._groups.close()
        if self._copy_links is not None:
            self._copy_links[1].close()
            self._copy_links = None

    def _moved(self, generation: int, slices: tuple[Slice, ...], held: tuple[Held, ...], lost: Collection[int]) -> Storage:
        """The present state as the new slices ask for it, beside the old one; or just that, where this rank holds the same as before."""
        sizes = {spec.name: spec.atom_size for spec in tensor_specs(self._config.model)}
        moves = least_moves(without(self._slices, lost), slices, sizes)
        mine = slices_of(slices, self._rank)
        stays = arranged(held, mine) == self._storage.held
        new = self._storage if stays else Storage(held, mine, self._dtype)
        have = () if stays else slices_of(self._slices, self._rank)
        self._refill(new, lambda _: self._storage, have, moves, generation, slices)
        return new

    def _restored(self, layout: Layout, slices: tuple[Slice, ...], held: tuple[Held, ...], lost: Collection[int], cut: Cut) -> Storage:
        """The state of the cut as the new slices ask for it. Who is no member any more has nothing of it, whether named as lost or not."""
        model = self._config.model
        new = Storage(held, slices_of(slices, self._rank), self._dtype)
        if cut.iteration == 0:
            new.fill_initial(model, self._config.job.seed)
            return new
        gone = {*lost, *set(cut.layout.members) - set(layout.members)}
        moves = moves_back(cut, model, gone, slices)
        have = slices_of(held_at(cut, model, gone), self._rank)
        source = self._kept.find(cut).source if have else lambda _: new  # without any of it this rank only receives
        self._refill(new, source, have, moves, layout.generation, slices)
        return new

    def _refill(
        self, new: Storage, source: Source, have: tuple[Slice, ...], moves: tuple[Move, ...], generation: int, slices: Sequence[Slice]
    ) -> None:
        self.plan = _hash_of(slices, moves)
        self.received_bytes = refill(new, source, have, moves, self._rank, lambda peers: self._links(peers, f"gen{generation}/moves"))

    def _links_to_holders(self, iteration: int, holders: Mapping[int, int]) -> Link | None:
        """Connections for copies: made for the first one under a layout, and dropped with it."""
        peers = {holders.get(self._rank, self._rank), *(rank for rank, holder in holders.items() if holder == self._rank)} - {self._rank}
        if self._copy_links is not None and self._copy_links[0] != holders:
            self._copy_links[1].close()
            self._copy_links = None
        if self._copy_links is None and peers:
            self._copy_links = holders, self._links(peers, f"gen{self._layout.generation}/copies{iteration}")
        return None if self._copy_links is None else self._copy_links[1]

    def _links(self, peers: Collection[int], name: str, patience: Patience | None = None) -> Link:
        """Links of their own to `peers`, which meet under `name`."""
        assert self._store is not None  # there is another rank, so there was a store to meet at
        return self._backend.fresh().links(self._rank, peers, (), PrefixStore(name, self._store), patience or self._patience)

    def workload(self, iteration: int) -> npt.NDArray[np.void]:
        """WORKLOAD rows of all global micro-batches of the iteration."""
        return self._loader.workload(iteration)

    def digests(self) -> dict[str, str]:
        """A hash of parameter and moments per slice that this rank owns: equal on all its owners."""
        result = {}
        for piece in slices_of(self._slices, self._rank):
            start, end = self._storage.span(piece)
            digest = hashlib.blake2b(digest_size=8)
            for kind in STATES:
                digest.update(getattr(self._storage, kind)[start:end].numpy())
            result[piece.name] = digest.hexdigest()
        return result

    def sketch(self) -> Sketch:
        """Of parameter and moments of all atoms that this rank owns."""
        result: Sketch = {}
        for piece in slices_of(self._slices, self._rank):
            start, end = self._storage.span(piece)
            for kind in STATES:
                values = getattr(self._storage, kind)[start:end].view(piece.end - piece.first, -1).numpy()
                result |= sketch_atoms(kind, piece.tensor, piece.first, values)
        return result

    def state(self) -> dict[str, torch.Tensor]:
        """Copies by kind and slice, as in `exp_avg/layers.0.attn.wo[0:4]`. Kinds: param, grad, exp_avg, exp_avg_sq."""
        result = {}
        for piece in slices_of(self._slices, self._rank):
            start, end = self._storage.span(piece)
            for kind in (*STATES, "grad"):
                result[f"{kind}/{piece.name}"] = getattr(self._storage, kind)[start:end].view(self._storage.shape(piece)).clone()
        return result

    def close(self) -> None:
        """Drop the groups; the engine computes no more."""
        self.abandon()

    def _wire(self, layout: Layout) -> _Work | None:
        """Everything that depends on the layout and keeps no state of the training; None for a standby rank."""
        if self._rank not in layout.ranks:
            return None
        where = layout.position(self._rank)
        stage = layout.replicas[where.dp].stages[where.pp]
        event_group = next((group.id for group in layout.groups() if group.kind == "tp" and group.ranks == stage.ranks), -1)
        group = TensorGroup(stage, self._groups.links, event_group, self._instruments)
        model = StageModel(self._config, layout, self._rank, self._storage, group, self._instruments)
        shape = (self._config.model.seq_len, self._config.model.hidden)
        todo = tasks(layout, self._config.layout.schedule, where.dp, where.pp)
        neighbours = {leg.place for task in todo for leg in (task.before, task.behind) if leg is not None}
        passages = Passages(layout, self._rank, neighbours, self._groups.links, shape, self._dtype, self._instruments)
        tables = Tables(self._config.model, self._dtype, vocabulary_rows(self._held))
        pipeline = Pipeline(layout, todo, model, passages, self._loader, tables, self._instruments)
        return _Work(pipeline, GradientSync(layout, self._rank, self._slices, self._storage, self._groups, self._instruments))


def _hash_of(slices: Sequence[Slice], moves: Sequence[Move]) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode((slices, moves)), digest_size=8).hexdigest()


def _check_supported(layout: Layout, schedule: str) -> None:
    """Raise LurcherError for what the engine cannot run: split backward passes, several chunks a stage, an order of work that is none."""
    if schedule in SPLIT_BACKWARD:
        raise LurcherError(f"layout.schedule {schedule!r} splits backward passes into B and W; the engine runs merged ones: choose 1f1b or gpipe")
    for d, s, stage in layout.stages():
        if len(stage.chunks) != 1:
            raise LurcherError(f"replica {d} stage {s} has {len(stage.chunks)} chunks of layers; the engine runs one a stage")
    joints(layout, schedule)
