"""A fault as a value: what goes wrong, where, by how much, from when, for how long.

The same value serves the demo, the injector, the tests and the simulator. It has a text form
(`slow rank 5 x1.8 from 20 to 60`) and a table form for the job file. It decides nothing and injects nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import msgspec

from lurcher.errors import UserError

Kind = Literal["slow", "link", "stop", "hang", "ramp", "flap"]
Phase = Literal["", "forward", "backward", "sync", "commit", "reconfigure"]

EXAMPLE = "slow rank 5 x1.8 from 20 to 60"
"""A fault text to show where one could not be read."""


class Iterations(msgspec.Struct, frozen=True, tag="iterations"):
    """A moment or a length counted in iterations, from 0."""

    n: int

    def __str__(self) -> str:
        return str(self.n)


class Seconds(msgspec.Struct, frozen=True, tag="seconds"):
    """A moment or a length in seconds since the first iteration began."""

    s: float

    def __str__(self) -> str:
        return f"{_plain(self.s)}s"


When = Iterations | Seconds


class Where(msgspec.Struct, frozen=True):
    """The ranks that are hit, or the two ends of a link."""

    kind: Literal["rank", "link"]
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {('-' if self.kind == 'link' else ',').join(map(str, self.ranks))}"


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong. `factor` multiplies time: 1.0 is healthy, 1.8 takes 80 % longer; stop and hang leave it at 1.0.

    The fault holds over the half-open span [onset, onset + duration); `duration` None lasts for ever. Both have one unit.
    Kinds: `slow` (a rank's own work), `link` (transfers over a link), `ramp` (grows linearly to `factor` at the end of the span),
    `flap` (on in the first half of every `period`, off in the second), `stop` (the process ends), `hang` (it stays, but does nothing).
    `phase` narrows it to one part of an iteration; empty means the whole iteration.
    """

    kind: Kind
    where: Where
    factor: float
    onset: When
    duration: When | None = None
    phase: Phase = ""
    period: When | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        """The text form; `parse_fault` reads it back to an equal value."""
        words = ["slow" if self.kind == "link" else self.kind, str(self.where)]
        if self.kind not in ("stop", "hang"):
            words.append(f"x{_plain(self.factor)}")
        if self.phase:
            words += ["in", self.phase]
        if self.period is not None:
            words += ["every", str(self.period)]
        words += ["from", str(self.onset)]
        if isinstance(self.duration, Iterations) and isinstance(self.onset, Iterations):
            words += ["to", str(self.onset.n + self.duration.n)]
        elif self.duration is not None:
            words += ["for", str(self.duration)]
        return " ".join(words)


def parse_fault(text: str) -> Fault:
    """Read a fault's text form; UserError names the word that does not fit.

    `KIND rank N[,N] | link A-B [xFACTOR] [in PHASE] [every P] from A [to B | for N]`. A, B, N and P count iterations, or seconds with an
    `s` behind (`12s`). `to B` is half-open: the last iteration that is hit is B - 1. A kind followed by `link` is a fault of that link.
    """
    words = text.lower().split()
    table: dict[str, Any] = {}
    if words and words[0] in get_args(Kind):
        table["kind"] = words.pop(0)
        if table["kind"] == "link":
            words.insert(0, "link")
    else:
        first = words[0] if words else ""
        raise UserError(f'fault "{text}" starts with "{first}"; allowed kinds: {", ".join(get_args(Kind))}; write it like "{EXAMPLE}"')
    while words:
        word = words.pop(0)
        if re.fullmatch(r"x[0-9].*", word):
            key, value = "factor", word[1:]
        elif word in _WORDS and words:
            key, value = _WORDS[word], words.pop(0)
        else:
            raise UserError(f'fault "{text}" is not understood at "{word}"; write it like "{EXAMPLE}"')
        if key in table:
            raise UserError(f'fault "{text}" gives "{word}" twice; give it once')
        table[key] = value
    return _build(table, f'fault "{text}"')


def fault_from_toml(table: Mapping[str, Any]) -> Fault:
    """Read one `[[fault]]` table: `text = "..."` alone, or kind, rank or link, factor, phase, every, from and to or for."""
    if "text" in table:
        if len(table) > 1:
            raise UserError(f"fault: text stands for the whole fault; remove {', '.join(sorted(k for k in table if k != 'text'))}")
        if not isinstance(table["text"], str):
            raise UserError(f'fault: text is {table["text"]!r}; expected text like "{EXAMPLE}"')
        return parse_fault(table["text"])
    for key in table:
        if key not in _KEYS:
            raise UserError(f'fault: unknown key "{key}"; allowed: {", ".join((*_KEYS, "text"))}')
    if table.get("kind") not in get_args(Kind):
        raise UserError(f"fault: kind is {table.get('kind', '')!r}; allowed: {', '.join(get_args(Kind))}")
    return _build(table, "fault")


def active_at(fault: Fault, iteration: int, elapsed_s: float) -> bool:
    """Whether the fault's span holds this iteration (spans in iterations) or this moment (spans in seconds)."""
    position = _position(fault, iteration, elapsed_s)
    return position >= 0 and (fault.duration is None or position < _number(fault.duration))


def factor_at(fault: Fault, iteration: int, elapsed_s: float) -> float:
    """How much longer the work hit takes in `iteration`, `elapsed_s` after the first one began: 1.0 outside the span.

    A ramp reaches `factor` in the span's last iteration, and at the span's end if it is in seconds. Stopped or hung work takes
    infinitely long. The phase is not looked at.
    """
    if not active_at(fault, iteration, elapsed_s):
        return 1.0
    if fault.kind in ("stop", "hang"):
        return math.inf
    position = _position(fault, iteration, elapsed_s)
    if fault.kind == "ramp" and fault.duration is not None:
        done = position + 1 if isinstance(fault.onset, Iterations) else position
        return 1.0 + (fault.factor - 1.0) * done / _number(fault.duration)
    if fault.kind == "flap" and fault.period is not None:
        period = _number(fault.period)
        return fault.factor if position % period < period / 2 else 1.0
    return fault.factor


_WORDS: Mapping[str, str] = {"rank": "rank", "link": "link", "from": "from", "to": "to", "for": "for", "in": "phase", "every": "every"}
_KEYS = ("kind", "rank", "link", "factor", "phase", "every", "from", "to", "for")


def _build(table: Mapping[str, Any], name: str) -> Fault:
    if ("rank" in table) == ("link" in table):
        raise UserError(f"{name} must name either a rank (rank 5) or a link (link 0-4)")
    where = Where("rank", _ranks(table["rank"], ",", name)) if "rank" in table else Where("link", _ranks(table["link"], "-", name))
    kind = "link" if table["kind"] == "slow" and where.kind == "link" else table["kind"]
    if "from" not in table:
        raise UserError(f'{name} does not say when it begins; add "from 20" (iteration) or "from 12s" (seconds)')
    onset = _when(table["from"], "from", name)
    if "to" in table and "for" in table:
        raise UserError(f"{name} gives both to and for; the end is said once")
    duration = _when(table["for"], "for", name) if "for" in table else None
    if "to" in table:
        end = _when(table["to"], "to", name)
        if type(end) is not type(onset):
            raise UserError(f"{name} begins at {onset} and ends at {end}; give both in iterations, or both in seconds")
        if _number(end) <= _number(onset):
            raise UserError(f"{name} ends at {end}, but begins at {onset}; the end is the first one that is healthy again")
        duration = (
            Iterations(end.n - onset.n) if isinstance(end, Iterations) and isinstance(onset, Iterations) else Seconds(_number(end) - _number(onset))
        )
    factor = _factor(table.get("factor"), kind, name)
    period = _when(table["every"], "every", name) if "every" in table else None
    phase = table.get("phase", "")
    if phase not in get_args(Phase):
        raise UserError(f'{name} names the phase "{phase}"; allowed: {", ".join(p for p in get_args(Phase) if p)}, or none for the whole iteration')
    return Fault(cast(Kind, kind), where, factor, onset, duration, cast(Phase, phase), period)


def _ranks(value: object, separator: str, name: str) -> tuple[int, ...]:
    parts = value if isinstance(value, list) else str(value).split(separator) if isinstance(value, str) else [value]
    try:
        return tuple(sorted(int(str(part)) for part in parts))  # by way of text, so that neither true nor 5.5 is a rank
    except ValueError:
        raise UserError(f'{name} names "{value}"; expected rank numbers: 5 or 5,6 for ranks, 0-4 for a link') from None


def _when(value: object, word: str, name: str) -> When:
    if isinstance(value, int) and not isinstance(value, bool):
        return Iterations(value)
    text = str(value)
    if re.fullmatch(r"\d+", text):
        return Iterations(int(text))
    if re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d+)?s", text):
        return Seconds(float(text[:-1]))
    raise UserError(f'{name} says {word} "{value}"; expected an iteration number like 20, or seconds like 12s')


def _factor(value: object, kind: str, name: str) -> float:
    if kind in ("stop", "hang"):
        if value is not None:
            raise UserError(f"{name} gives a factor, but a {kind} has none; remove it")
        return 1.0
    if value is None:
        raise UserError(f"{name} has no factor; add one, such as x1.8 (takes 80 % longer)")
    try:
        return float(cast(str, value))
    except (TypeError, ValueError):
        raise UserError(f'{name} has the factor "{value}"; expected a number like 1.8 (takes 80 % longer)') from None


def _check(fault: Fault) -> None:
    ranks, kind = fault.where.ranks, fault.kind
    if not ranks or min(ranks) < 0 or len(set(ranks)) != len(ranks):
        raise UserError(f"a fault names the ranks {ranks}; it needs at least one, numbered from 0, each once")
    if fault.where.kind == "link" and len(ranks) != 2:
        raise UserError(f"a link joins two ranks, not {len(ranks)}; write it like link 0-4")
    if fault.where.kind == "link" and kind in ("slow", "stop", "hang") or fault.where.kind == "rank" and kind == "link":
        raise UserError(
            f"a fault of kind {kind} cannot hit a {fault.where.kind}; slow, stop and hang hit ranks, link hits a link, ramp and flap hit both"
        )
    if not (math.isfinite(fault.factor) and fault.factor >= 1.0):
        raise UserError(f"a fault has the factor {fault.factor}; 1.0 is healthy and 1.8 takes 80 % longer: give 1.0 or more")
    if _number(fault.onset) < 0:
        raise UserError(f"a fault begins at {fault.onset}; 0 is the least")
    for length in (fault.duration, fault.period):
        if length is not None and (type(length) is not type(fault.onset) or _number(length) <= 0):
            raise UserError(
                f"a fault begins at {fault.onset} and has the length {length}; both in iterations or both in seconds (12s), and more than 0"
            )
    if kind == "stop" and fault.duration is not None:
        raise UserError("a stopped rank does not come back by itself; remove the end")
    if kind == "hang" and isinstance(fault.duration, Iterations):
        raise UserError("a hung rank counts no iterations; give onset and length in seconds (from 12s for 5s), or no end")
    if kind == "ramp" and fault.duration is None:
        raise UserError('a ramp needs an end, where it reaches its factor; add "to 60" or "for 40"')
    if (kind == "flap") != (fault.period is not None):
        raise UserError('a flap, and only a flap, has a period; write it like "flap rank 3 x1.5 every 10 from 20 to 60"')


def _position(fault: Fault, iteration: int, elapsed_s: float) -> float:
    return iteration - fault.onset.n if isinstance(fault.onset, Iterations) else elapsed_s - fault.onset.s


def _number(when: When) -> float:
    return when.n if isinstance(when, Iterations) else when.s


def _plain(value: float) -> str:
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text
