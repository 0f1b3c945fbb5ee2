"""A planning problem out of a run directory: rates as measured while the run was healthy, faults as its verdict names them.

What the records do not hold is left out of account: memory, bytes, link rates. What an iteration takes beyond the walk of its
chunks goes into `overhead_s`, so that the healthy layout's price is the measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.model.rates import LinkRate, Rates
from lurcher.plan.moves import SwitchCosts
from lurcher.plan.problem import Problem
from lurcher.records import Cause, Op, Place
from lurcher.runlog import RunReader

LEAST_ITERATIONS = 5
BACKWARD_RATIO = 2.0
"""Backward over forward where no window of events tells: two matrix products for each of the forward pass."""


def problem_of_run(path: Path) -> Problem:
    """The problem of the layout that the run began with, under the faults that its verdict found last."""
    run = RunReader(path)
    verdict = run.verdict()
    if verdict is None:
        raise UserError(f"{path} has no verdict.json, so nothing says what is slow; wait until the run has ended, or write a problem file")
    rows, layout = run.iterations(), run.header.layout
    event = next((one for one in reversed(verdict.get("events", [])) if one.get("kind") in ("fail_slow", "fail_stop")), None)
    rates = _healthy_rates(run, layout, _healthy(rows, event, path))
    slowdown, causes = _faults(event)
    links = _slow_links(event, rates)
    dead = tuple(sorted(slowdown)) if event is not None and event["kind"] == "fail_stop" else ()
    job = run.header.job
    pauses = [d.value["pause_s"] for d in run.decisions() if d.kind == "reconfiguration" and isinstance(d.value, dict) and _applied(d.value)]
    iterations = int(job.get("job", {}).get("iterations", 0))
    most = max(stage.tp_size for _, _, stage in layout.stages())
    return Problem(
        layout=layout,
        rates=msgspec.structs.replace(rates, slowdown={} if dead else slowdown, dead=dead, links=links),
        schedule=job.get("layout", {}).get("schedule", "1f1b"),
        causes=causes,
        num_atoms=int(job.get("model", {}).get("num_kv_heads", 16 * most)),
        costs=SwitchCosts(border_s=float(np.median(pauses))) if pauses else SwitchCosts(),
        remaining_iterations=float(max(iterations - int(rows["index"].max(initial=0)) - 1, 100)),
    )


def _applied(value: dict[str, Any]) -> bool:
    return value.get("outcome") == "applied" and isinstance(value.get("pause_s"), float)


def _healthy(rows: np.ndarray, event: dict[str, Any] | None, path: Path) -> np.ndarray:
    """Rows of iterations before the event, without the first ones; after it where it began too early."""
    first = int(rows["index"].min(initial=0)) + 3
    kept = rows[rows["index"] >= first]
    if event is not None and event.get("onset_iteration") is not None:
        before = kept[kept["index"] < event["onset_iteration"]]
        end = event.get("end_iteration")
        kept = before if len(np.unique(before["index"])) >= LEAST_ITERATIONS else kept[kept["index"] > end] if end is not None else before
    if len(np.unique(kept["index"])) < LEAST_ITERATIONS:
        raise UserError(f"{path} holds fewer than {LEAST_ITERATIONS} healthy iterations; rates cannot be measured from it: write a problem file")
    return kept


def _healthy_rates(run: RunReader, layout: Layout, rows: np.ndarray) -> Rates:
    """Rates under which the layout's price is the median healthy iteration."""
    layer_s, together = [], []
    for d, _, stage in layout.stages():
        for rank in stage.ranks:
            own = rows[rows["rank"] == rank]
            work = layout.split[d] * stage.num_layers / stage.tp_size
            if len(own) and work:
                busy_s = float(np.nanmedian(own["busy_s"]))
                layer_s.append(busy_s / work)
                together.append(busy_s / (busy_s + float(np.nan_to_num(np.nanmedian(own["transfer_tp_s"])))))
    if not layer_s or not np.median(layer_s) > 0:
        raise UserError(f"{run.path} records no busy time of its ranks; rates cannot be measured from it: write a problem file")
    most = max(stage.tp_size for _, _, stage in layout.stages())
    whole_s, ratio = float(np.median(layer_s)), _backward_ratio(run)
    rates = Rates(
        forward_s=whole_s / (1 + ratio),
        backward_s=whole_s * ratio / (1 + ratio),
        tp_efficiency=(*((1.0,) * (most - 1)), float(np.median(together)) if most > 1 else 1.0),
        places=_nodes(run.header.places),
    )
    walked_s = price(layout, rates, run.header.job.get("layout", {}).get("schedule", "1f1b")).iteration_s
    measured_s = float(np.median(rows["duration_s"]))
    return msgspec.structs.replace(rates, overhead_s=max(measured_s - walked_s, 0.0))


def _backward_ratio(run: RunReader) -> float:
    """Median backward over median forward chunk in a healthy window of events."""
    for _, label, events in run.events():
        if label == "healthy":
            took = events["end_ns"] - events["start_ns"]
            forward, backward = took[events["op"] == Op.FORWARD], took[events["op"] == Op.BACKWARD]
            if len(forward) and len(backward) and np.median(forward) > 0:
                return float(np.median(backward) / np.median(forward))
    return BACKWARD_RATIO


def _nodes(places: Sequence[Place]) -> dict[int, int]:
    hosts = {host: i for i, host in enumerate(dict.fromkeys(place.host for place in places))}
    return {place.rank: hosts[place.host] for place in places}


def _faults(event: dict[str, Any] | None) -> tuple[dict[int, float], tuple[Cause, ...]]:
    """Slowdown per rank and the causes, from an event of a verdict."""
    suspects = event.get("suspects", []) if event is not None else []
    slowdown: dict[int, float] = {}
    for suspect in suspects:
        if suspect["component"].get("kind") == "link":
            continue  # its ranks are the ends, and not slow themselves
        for rank in suspect["component"]["ranks"]:
            slowdown[int(rank)] = max(slowdown.get(int(rank), 1.0), float(suspect.get("slowdown") or 1.0))
    return slowdown, tuple(dict.fromkeys(suspect["cause"] for suspect in suspects))


def _slow_links(event: dict[str, Any] | None, rates: Rates) -> tuple[LinkRate, ...]:
    """Links that an event of a verdict names: between the nodes of their ends, or within a node between these."""
    found = []
    for suspect in event.get("suspects", []) if event is not None else []:
        ranks = suspect["component"]["ranks"]
        if suspect["component"].get("kind") == "link" and len(ranks) == 2:
            a, b = (rates.node(int(rank)) for rank in ranks)
            slowdown = float(suspect.get("slowdown") or 1.0)
            found.append(LinkRate(a, b, slowdown) if a != b else LinkRate(int(ranks[0]), int(ranks[1]), slowdown, "rank"))
    return tuple(found)
