"""Numbers as programs print them for people: `7,412`, `2.6M`, `1.42E-05`, `412ms`."""

from __future__ import annotations

import math
import re

from lurcher.records import ITERATION

MAX_ITERATION = 10**15
"""Largest iteration number taken: a float holds every whole number below it."""
MAX_RANK = 2**31 - 1
"""What records.ITERATION holds."""

_SCALES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_PRINTED = re.compile(r"([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([KkMGBT]?)")
_MISSING = frozenset({"", "nan", "null", "none", "na", "n/a", "-", "inf", "+inf", "-inf", "infinity", "-nan"})

UNITS_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in one unit of time."""


def quantity(text: str) -> float | None:
    """The number in `text`, with thousands commas and a suffix K, M, G (or B), T; NaN for what stands for nothing; None where it is no number."""
    text = text.strip()
    try:
        value = float(text) if "_" not in text else None  # Python reads 1_5 as 15, nobody prints it
        if value is None:
            return None
    except ValueError:
        if text.lower() in _MISSING:
            return math.nan
        printed = _PRINTED.fullmatch(text)
        if printed is None:
            return None
        return float(printed[1].replace(",", "")) * _SCALES[printed[2]]
    return value if math.isfinite(value) else math.nan


def split_unit(name: str) -> tuple[str, float | None]:
    """`duration_ms` -> ("duration", 0.001); `elapsed (s)` -> ("elapsed", 1.0); no unit in the name: the name and None."""
    plain = name.strip().lower()
    found = re.fullmatch(r"(.*?)[ _]*\(\s*(\w+)\s*\)|(.+)_([a-z]+)", plain)
    if found:
        stem, unit = (found[1], found[2]) if found[2] else (found[3], found[4])
        if stem and unit in UNITS_S:
            return stem.replace(" ", "_"), UNITS_S[unit]
    return plain.replace(" ", "_"), None


FLOATS = tuple(name for name in ITERATION.names or () if ITERATION[name].kind == "f")
"""The float columns of records.ITERATION."""
