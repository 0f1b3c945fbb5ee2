"""Pipeline schedules as text: one string per stage, such as "F0 F1 B0 F2 B1". Numbers are LOCAL to the replica.

A word is an action: forward (F), backward (B), or weight gradient (W) of a micro-batch. Where a stage holds several chunks of
the model, the chunk stands before it: 1F0 is the forward of chunk 1, and F0 that of chunk 0. A schedule without W runs the
merged backward pass as B. The predictor walks the text, the runtime executes it, the report draws it; so it is made here, and only here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lurcher.errors import UserError

ActionKind = Literal["F", "B", "W"]
KINDS: tuple[ActionKind, ...] = ("F", "B", "W")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb_h1")
"""Schedules that can be made by name."""
SPLIT_BACKWARD = ("zb_h1",)
"""Those with W actions."""


class Action(NamedTuple):
    """One piece of work of a stage: forward, backward or weight gradient of a local micro-batch, on one of its chunks."""

    kind: ActionKind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.chunk or ''}{self.kind}{self.microbatch}"


def schedule_text(name: str, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> tuple[str, ...]:
    """The action list of every stage, in pipeline order, for one replica with `num_microbatches` micro-batches.

    `num_chunks` is the number of chunks that each stage holds; more than one needs "interleaved". A replica without
    micro-batches gets empty texts. Raises UserError for a name that is not in `SCHEDULES`.
    """
    if num_stages < 1:
        raise UserError(f"a schedule for {num_stages} stages cannot be made; 1 is the least: raise layout.pp")
    if num_microbatches < 0:
        raise UserError(f"a schedule for {num_microbatches} micro-batches cannot be made; 0 is the least")
    if name not in SCHEDULES:
        raise UserError(f"layout.schedule is {name!r}; allowed are {', '.join(SCHEDULES)}: choose one of them")
    if num_chunks < 1 or (num_chunks > 1 and name != "interleaved"):
        raise UserError(f"schedule {name!r} cannot run {num_chunks} chunks a stage; give each stage one, or choose 'interleaved'")
    if name == "gpipe":
        return (_gpipe(num_microbatches),) * num_stages
    if name == "zb_h1":
        return tuple(_zb_h1(num_stages, stage, num_microbatches) for stage in range(num_stages))
    if name == "interleaved" and num_chunks > 1:
        return tuple(_interleaved(num_stages, stage, num_microbatches, num_chunks) for stage in range(num_stages))
    return tuple(_one_forward_one_backward(num_stages, stage, num_microbatches) for stage in range(num_stages))


def parse(text: str) -> tuple[Action, ...]:
    """The actions of one stage's text, in order. Raises UserError at the first word that is no action."""
    return parse_all([text])[0]


def parse_all(texts: Sequence[str]) -> list[tuple[Action, ...]]:
    """The actions of every stage's text: the same words come again and again, and are read once."""
    words = [text.split() for text in texts]
    known = {word: _parse_word(word) for word in dict.fromkeys(itertools.chain.from_iterable(words))}
    return [tuple(map(known.__getitem__, each)) for each in words]


def live_microbatches(name: str, num_stages: int, stage: int, num_microbatches: int) -> int:
    """Micro-batches whose activations a stage of one chunk holds at once, at the most; a W action frees them where there is one."""
    if name == "gpipe":
        return num_microbatches
    return min(num_stages if name == "zb_h1" else num_stages - stage, num_microbatches)


def _one_forward_one_backward(num_stages: int, stage: int, num_microbatches: int) -> str:
    """1F1B (PipeDream-flush): stage s runs min(P - s - 1, m) forwards ahead, then alternates, then drains."""
    ahead = min(num_stages - stage - 1, num_microbatches)
    words = [f"F{m}" for m in range(ahead)]
    for m in range(ahead, num_microbatches):
        words += [f"F{m}", f"B{m - ahead}"]
    words += [f"B{m}" for m in range(num_microbatches - ahead, num_microbatches)]
    return " ".join(words)


def _gpipe(num_microbatches: int) -> str:
    """GPipe: all forwards, then all backwards, the first micro-batch first in both."""
    return " ".join([f"F{m}" for m in range(num_microbatches)] + [f"B{m}" for m in range(num_microbatches)])


def _zb_h1(num_stages: int, stage: int, num_microbatches: int) -> str:
    """ZB-H1, as drawn by hand in Zero Bubble Pipeline Parallelism (arXiv 2401.10241, section 2.1): 1F1B with the weight gradients apart.

    F and B stand as in 1F1B. Stage s runs each W s micro-batches late, so that the gradient goes upstream sooner and the
    drain has work left: the bubble is (P - 1)(F + B - W), a third of 1F1B's when all three are equal. Stage s then holds
    P - s activations ahead of B and s that await W: P in all, the peak of 1F1B.
    """
    words = []
    for word in _one_forward_one_backward(num_stages, stage, num_microbatches).split():
        words.append(word)
        if word[0] == "B" and int(word[1:]) >= stage:
            words.append(f"W{int(word[1:]) - stage}")
    words += [f"W{m}" for m in range(max(num_microbatches - stage, 0), num_microbatches)]
    return " ".join(words)


def _interleaved(num_stages: int, stage: int, num_microbatches: int, num_chunks: int) -> str:
    """Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2): micro-batches go through the chunks in groups.

    There the groups have P micro-batches and divide m; here they are as even as they go with P or more, and the forwards
    that run ahead, 2 (P - s - 1) + (v - 1) P there, count the largest group for P. Without that, a group larger than
    what runs ahead would wait for its own second chunk.
    """
    groups = interleaved_groups(num_stages, num_microbatches)
    forwards = [Action("F", m, chunk) for group in groups for chunk in range(num_chunks) for m in group]
    backwards = [Action("B", m, chunk) for group in groups for chunk in reversed(range(num_chunks)) for m in group]
    ahead = min(2 * (num_stages - stage - 1) + (num_chunks - 1) * len(groups[0]), len(forwards))
    words = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        words += [forward, backward]
    return " ".join(str(word) for word in (*words, *backwards[len(forwards) - ahead :]))


def interleaved_groups(num_stages: int, num_microbatches: int) -> tuple[range, ...]:
    """The micro-batches that go through all chunks together, largest group first."""
    num_groups = max(num_microbatches // num_stages, 1)
    base, more = divmod(num_microbatches, num_groups)
    cuts = [group * base + min(group, more) for group in range(num_groups + 1)]
    return tuple(range(first, end) for first, end in itertools.pairwise(cuts))


def _parse_word(word: str) -> Action:
    for kind in KINDS:
        chunk, found, number = word.partition(kind)
        if found and _is_number(number) and (not chunk or _is_number(chunk)):
            return Action(kind, int(number), int(chunk or 0))
    raise UserError(f"{word!r} is no action of a schedule; write F, B or W and a micro-batch number, as in F0, or 1F0 on chunk 1")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
