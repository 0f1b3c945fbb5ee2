"""Figures as people read them. Every function takes None or NaN and then gives a dash."""

from __future__ import annotations

import math
import unicodedata

from lurcher.records import Place

DASH = "–"


def _missing(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def seconds(value: float | None) -> str:
    """`value` seconds, with as many digits as its size deserves."""
    if value is None or _missing(value):
        return DASH
    if abs(value) < 0.001 and value:
        return f"{value * 1e6:.0f} µs"
    if abs(value) < 0.1 and value:
        return f"{value * 1e3:.1f} ms"
    if abs(value) < 10:
        return f"{value:.2f} s"
    if abs(value) < 600:
        return f"{value:.0f} s"
    return f"{value / 60:.1f} min" if abs(value) < 7200 else f"{value / 3600:,.1f} h"


def rate(value: float | None) -> str:
    """Iterations per minute, without the unit."""
    if value is None or _missing(value):
        return DASH
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    """A slowdown or gain, e.g. 1.80×."""
    return DASH if value is None or _missing(value) else f"{value:.2f}×"


def size(num_bytes: int) -> str:
    """Bytes as people read them."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def percent(value: float | None, *, signed: bool = False) -> str:
    """A fraction as a whole percentage, e.g. 0.81 -> 81 %."""
    if value is None or _missing(value):
        return DASH
    return f"{value * 100:+.0f} %" if signed else f"{value * 100:.0f} %"


def divide(above: float | None, below: float | None) -> float | None:
    """above / below, or None where either is missing or zero."""
    if above is None or below is None or _missing(above) or _missing(below) or below == 0:
        return None
    return above / below


def whereabouts(place: Place | None) -> str:
    """Host and device of a rank."""
    return f"{place.host}, {place.device}" if place else "unknown place"


def split_text(split: tuple[int, ...]) -> str:
    """Micro-batches per replica; a long list is shortened, for 512 numbers tell a reader nothing."""
    if len(split) <= 12:
        return "(" + ", ".join(map(str, split)) + ")"
    return f"({', '.join(map(str, split[:5]))}, … {len(split)} replicas, {min(split)} to {max(split)} each)"


def for_terminal(text: str) -> str:
    """Without control characters: a host name must not be able to steer the reader's terminal."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else "?" for c in text)


_KINDS = {
    "fail_slow": "Fail-slow",
    "level_shift": "Level shift",
    "drift": "Drift",
    "burst": "Burst",
    "restart": "Restart",
    "fail_stop": "Fail-stop",
    "hang": "Hang",
}


def event_name(kind: str) -> str:
    """A kind of event as a reader knows it."""
    return _KINDS.get(kind, kind)


def iterations_text(first: int | None, last: int | None) -> str:
    """A span of iterations; without a last one it still goes on."""
    return f"since iteration {first}" if last is None else f"iterations {first} to {last}"
