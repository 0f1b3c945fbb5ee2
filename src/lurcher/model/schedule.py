"""Pipeline schedules as text: one string per stage, such as "F0 F1 B0 F2 B1". Numbers are LOCAL to the replica.

The predictor walks the text, the runtime executes it, the report draws it; so it is made here, and only here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lurcher.errors import UserError

ActionKind = Literal["F", "B", "W"]
SCHEDULES = ("1f1b", "gpipe")
"""Schedules that can be made by name."""


class Action(NamedTuple):
    """One chunk of work of a stage: forward (F), backward (B) or weight gradient (W) of a local micro-batch."""

    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}"


def schedule_text(name: str, num_stages: int, num_microbatches: int) -> tuple[str, ...]:
    """The action list of every stage, in pipeline order, for one replica with `num_microbatches` micro-batches.

    A replica without micro-batches gets empty texts. Raises UserError for a name that is not in `SCHEDULES`.
    """
    if num_stages < 1:
        raise UserError(f"a schedule for {num_stages} stages cannot be made; 1 is the least: raise layout.pp")
    if num_microbatches < 0:
        raise UserError(f"a schedule for {num_microbatches} micro-batches cannot be made; 0 is the least")
    if name == "1f1b":
        return tuple(_one_forward_one_backward(num_stages, stage, num_microbatches) for stage in range(num_stages))
    if name == "gpipe":
        return (_gpipe(num_microbatches),) * num_stages
    raise UserError(f"layout.schedule is {name!r}; allowed are {', '.join(SCHEDULES)}: choose one of them")


def parse(text: str) -> tuple[Action, ...]:
    """The actions of one stage's text, in order. Raises UserError at the first word that is no action."""
    return tuple(_parse_word(word) for word in text.split())


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


def _parse_word(word: str) -> Action:
    number = word[1:]
    if not (number.isascii() and number.isdigit()):
        raise UserError(f"{word!r} is no action of a schedule; write F, B or W and a micro-batch number, as in F0")
    if word[0] == "F":
        return Action("F", int(number))
    if word[0] == "B":
        return Action("B", int(number))
    if word[0] == "W":
        return Action("W", int(number))
    raise UserError(f"{word!r} is no action of a schedule; write F, B or W and a micro-batch number, as in F0")
