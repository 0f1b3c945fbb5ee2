"""Several processes that each are one rank: forked from a warm server, answering by pipe, with a deadline for all."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed import PrefixStore, Store, TCPStore

LOOPBACK = "127.0.0.1"


class Answer(NamedTuple):
    """What a rank's work returned, or None and the process's exit code."""

    value: Any
    exit_code: int | None


def on_ranks(size: int, work: Callable[..., Any], *arguments: Any, deadline_s: float = 60.0) -> list[Answer]:
    """Run `work(rank, store, *arguments)` in `size` processes. A rank that raises fails the test; one that ends without an answer has None."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "lurcher.runtime.engine"])
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    deadline_s += time.monotonic()
    processes, pipes, answers = [], [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store.port, work, arguments, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        for process, pipe in zip(processes, pipes, strict=True):
            if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
                raise TimeoutError(f"{process.name} gave no answer")
            try:
                kind, value = pipe.recv()
            except EOFError:
                process.join(5.0)
                answers.append(Answer(None, process.exitcode))
                continue
            assert kind == "done", value
            answers.append(Answer(value, 0))
        return answers
    finally:
        for process in processes:
            process.kill()
            process.join(5.0)


def in_turn(rank: int, store: Store, *works: Callable[..., Any]) -> list[Any]:
    """What several works return, done one after the other by the same processes: starting those costs more than the works do."""
    return [work(rank, PrefixStore(str(number), store)) for number, work in enumerate(works)]


def _serve(rank: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    torch.set_num_threads(1)
    store: Store = TCPStore(LOOPBACK, port, is_master=False)
    try:
        pipe.send(("done", work(rank, store, *arguments)))
    except BaseException:
        pipe.send(("raised", traceback.format_exc()))
        raise
    finally:
        pipe.close()
    time.sleep(3600.0)  # its connections stay until everybody has answered
    os._exit(0)
