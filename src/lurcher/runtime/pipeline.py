"""One iteration of one rank: its stage's tasks, with the activations and gradients that pass between stages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lurcher.layout import Layout
from lurcher.model.program import Leg, Task
from lurcher.records import Op
from lurcher.runtime.context import Context, Tables, contexts
from lurcher.runtime.data import Loader
from lurcher.runtime.instruments import Instruments
from lurcher.runtime.passages import Passages
from lurcher.runtime.stage import StageModel


class Pipeline:
    """The tasks of a rank's stage in every iteration. Whose micro-batch it is makes no difference: data are keyed by its global number."""

    def __init__(
        self,
        layout: Layout,
        tasks: Sequence[Task],
        stage: StageModel,
        passages: Passages,
        loader: Loader,
        tables: Tables,
        instruments: Instruments,
    ) -> None:
        self._tasks = tasks
        self._num_microbatches, self._num_layers = layout.num_microbatches, layout.num_layers
        self._order = list(dict.fromkeys(task.microbatch for task in tasks))
        self._turn = {microbatch: turn for turn, microbatch in enumerate(self._order)}
        self._stage, self._passages, self._loader, self._tables = stage, passages, loader, tables
        self._instruments = instruments
        self._contexts: dict[int, Context] = {}

    def run(self, iteration: int) -> float:
        """All chunks of the iteration; returns the sum of the micro-batches' mean losses, 0 where no loss is computed."""
        self._stage.begin_iteration()
        self._passages.begin_iteration()
        self._contexts.clear()
        for task in self._tasks:
            if task.kind == "F":
                self._forward(iteration, task)
            else:
                self._backward(iteration, task)
        return self._stage.loss_sum()

    def _forward(self, iteration: int, task: Task) -> None:
        context = self._load(iteration, task.microbatch)
        x = None if task.before is None else self._passages.receive(task.before.place, self._seq(iteration, task, task.leg))
        output = self._stage.forward(context, task.leg, x)
        if task.behind is not None:
            self._passages.send(output, task.behind.place, self._seq(iteration, task, task.behind))

    def _backward(self, iteration: int, task: Task) -> None:
        grad = None if task.behind is None else self._passages.receive(task.behind.place, self._seq(iteration, task, task.behind))
        # A micro-batch that comes more than once goes back through its first visit last.
        context = self._contexts[task.microbatch] if task.leg.number else self._contexts.pop(task.microbatch)
        result = self._stage.backward(context, task.leg, grad)
        if task.before is not None:
            self._passages.send(result, task.before.place, self._seq(iteration, task, task.leg))

    def _load(self, iteration: int, microbatch: int) -> Context:
        """The context of a micro-batch. Several are made at once, as long as their masks are small: it costs little more than one."""
        if microbatch not in self._contexts:
            start_ns = time.monotonic_ns()
            turn = self._turn[microbatch]
            following = self._order[turn : turn + self._tables.block]
            self._contexts.update(contexts(following, self._loader.microbatches(iteration, following), self._tables))
            self._instruments.own_work(Op.INPUT, microbatch, start_ns)
        return self._contexts[microbatch]

    def _seq(self, iteration: int, task: Task, leg: Leg) -> int:
        """Number of the transfer at the border before `leg`, one of the task's: the same at both ends, different for all of a generation."""
        return 2 * ((iteration * self._num_microbatches + task.microbatch) * self._num_layers + leg.first) + (task.kind == "B")
