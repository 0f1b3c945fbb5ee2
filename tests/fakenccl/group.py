"""A process group over gloo with NCCL's manners, so that a machine without a GPU shows whether the runtime can live with them.

- A group is made at once, without a word to the others. The first call connects, and blocks its caller until all are there.
- Every other call returns at enqueue. Until it is complete its output is garbage; `wait()` returns at once, because on a device it only
  orders streams. Calls of a group run one after the other, and a broadcast is complete only when everybody has taken part.
- A peer that dies raises nothing: the call, and all behind it, never complete.
- `abort()`, from any thread, unblocks everybody in this process: calls are then complete, and their output is garbage for good.
- With `watchdog_s` the whole process ends when a call takes longer, as NCCL's watchdog has it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch.distributed import Store

from lurcher.runtime.gloo import GlooGroup, new_device

WATCHDOG_EXIT_CODE = 134
"""What a shell says of a process that aborted."""
FOREVER_S = 3600.0
"""gloo's own deadlines must not end what NCCL would not."""
CONNECT_S = 10.0
"""How long a thread that nobody needs any more may still wait for the dead. What waits for it waits on, as NCCL would."""


class FakeWork:
    """One call: done once it is complete or aborted, which nobody can tell from here."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self.outputs = outputs
        self.began_s = time.monotonic()
        self._done = threading.Event()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self) -> bool:
        """Orders streams; the host does not wait."""
        return True

    def finish(self) -> None:
        self._done.set()


class FakeNccl:
    """Rank number `index` of `size`. One thread carries the calls out in their order."""

    def __init__(self, store: Store, index: int, size: int, device: object, watchdog_s: float | None = None) -> None:
        self._place = (store, index, size)
        self._size, self._device, self._watchdog_s = size, device, watchdog_s
        self._gloo: GlooGroup | None = None
        self._lock = threading.Lock()  # between what completes a call and what aborts it
        self._is_aborted = False
        self._is_connected = threading.Event()
        self._calls: queue.SimpleQueue[tuple[FakeWork, Callable[[GlooGroup], None]] | None] = queue.SimpleQueue()
        self._open: list[FakeWork] = []
        self._thread: threading.Thread | None = None

    def allreduce(self, tensors: list[torch.Tensor]) -> FakeWork:
        summed = tensors[0].clone()
        return self._enqueue([tensors[0]], lambda gloo: gloo.allreduce([summed]).wait(), lambda: [summed])

    def allgather(self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> FakeWork:
        own, parts = tensors[0].clone(), [torch.empty_like(part) for part in outputs[0]]
        return self._enqueue(outputs[0], lambda gloo: gloo.allgather([parts], [own]).wait(), lambda: parts)

    def broadcast(self, tensors: list[torch.Tensor], root: int) -> FakeWork:
        copy = tensors[0].clone()

        def run(gloo: GlooGroup) -> None:
            gloo.broadcast([copy], root).wait()
            gloo.allreduce([torch.zeros(1)]).wait()  # nobody is through before everybody has come

        return self._enqueue([tensors[0]] if root != self._place[1] else [], run, lambda: [copy])

    def abort(self) -> None:
        with self._lock:
            self._is_aborted = True
            for work in self._open:
                _spoil(work.outputs)
                work.finish()
            self._open.clear()
            gloo, self._gloo = self._gloo, None
        self._is_connected.set()
        self._calls.put(None)
        if gloo is not None:
            gloo.abort()

    def _enqueue(self, outputs: list[torch.Tensor], run: Callable[[GlooGroup], None], results: Callable[[], list[torch.Tensor]]) -> FakeWork:
        work = FakeWork(outputs)

        def carry_out(gloo: GlooGroup) -> None:
            run(gloo)
            with self._lock:
                if work not in self._open:
                    return  # aborted meanwhile
                for output, result in zip(outputs, results(), strict=False):
                    output.copy_(result)
                self._open.remove(work)
                work.finish()

        with self._lock:
            if self._is_aborted:
                raise RuntimeError("NCCL communicator was aborted")
            _spoil(outputs)
            self._open.append(work)
        self._calls.put((work, carry_out))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
            if self._watchdog_s is not None:
                threading.Thread(target=self._watch, daemon=True).start()
        self._is_connected.wait()
        return work

    def _serve(self) -> None:
        """The device's stream. Whatever goes wrong in it stays in it: it stands still, and so does all that waits for it."""
        try:
            store, index, size = self._place
            gloo = GlooGroup(store, index, size, CONNECT_S, FOREVER_S, self._device)
            with self._lock:
                if self._is_aborted:
                    return  # dropped, not aborted: its sockets may be taken for those of a group that was made meanwhile
                self._gloo = gloo
            self._is_connected.set()
            while (call := self._calls.get()) is not None:
                with torch.inference_mode():  # the engine's tensors are of that kind
                    call[1](gloo)
        except (RuntimeError, OSError):
            return

    def _watch(self) -> None:
        assert self._watchdog_s is not None
        while not self._is_aborted:
            with self._lock:
                oldest_s = self._open[0].began_s if self._open else time.monotonic()
            if time.monotonic() - oldest_s > self._watchdog_s:
                os._exit(WATCHDOG_EXIT_CODE)
            time.sleep(self._watchdog_s / 20)


class MakeFakeNccl:
    """Makes such groups for a `GroupBackend`. The deadlines it is given are not NCCL's business, and ignored."""

    def __init__(self, watchdog_s: float | None = None) -> None:
        self._watchdog_s = watchdog_s
        self._device: object | None = None

    def fresh(self) -> MakeFakeNccl:
        return MakeFakeNccl(self._watchdog_s)

    def __call__(self, store: Store, index: int, size: int, connect_s: float, timeout_s: float) -> FakeNccl:
        self._device = self._device or new_device()
        return FakeNccl(store, index, size, self._device, self._watchdog_s)


def _spoil(outputs: list[torch.Tensor]) -> None:
    """Garbage that cannot be taken for a result: NaN, and bytes and numbers out of any range."""
    with torch.inference_mode():
        for output in outputs:
            output.fill_(torch.nan if output.is_floating_point() else torch.iinfo(output.dtype).max)
