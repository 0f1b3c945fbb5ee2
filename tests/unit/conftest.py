"""Fixtures of the unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def made() -> Iterator[ModuleType]:
    """`bench/whatif_made.py`, which makes operation traces up. bench/ is no package: its files are found by their folder."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    import whatif_made

    yield whatif_made
    sys.path.pop(0)
