"""The replay of a run directory's kept windows, beside what the run itself found."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lurcher.analyze.trace import what_if_section
from lurcher.analyze.trace_words import replay_words, worker_name
from lurcher.analyze.values import Verdict
from lurcher.errors import UserError
from lurcher.ingest.op_trace_run import read_run_trace
from lurcher.localize.whatif import analyse


def with_replay(verdict: Verdict, run: Path) -> Verdict:
    """The verdict on a run directory with the replay of its kept windows, where there are any that can be replayed.

    The replay only adds: its section, and to the events of a slow rank a sentence. What the run itself found stays.
    """
    try:
        trace = read_run_trace(run)
        analysis = None if trace is None else analyse(trace)
    except UserError:  # windows of another layout, or cut short: the run's own records are all there is
        analysis = None
    if analysis is None:
        return verdict
    named = ", ".join(f"{worker_name(w.dp, w.stage)} x{w.slowdown:.2f}" for w in analysis.slow)
    steps = " and ".join(str(step) for step in analysis.what_if.steps.tolist())
    said = f"{replay_words(analysis)} (iteration {steps}); slow beside its like: {named or 'no worker'}"
    events = tuple(
        msgspec.structs.replace(event, evidence=(*event.evidence, said)) if event.kind == "fail_slow" and event.suspects else event
        for event in verdict.events
    )
    return msgspec.structs.replace(verdict, events=events, what_if=what_if_section(analysis))
