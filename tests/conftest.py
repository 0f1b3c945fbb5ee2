"""What all tests share: how hypothesis runs, and where data of others lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPO = Path(__file__).parent.parent

# A loaded machine must not fail a test, and CI must say the same twice.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture
def shared_data() -> Path:
    """Real series and traces of others, kept beside a checkout; without them the test is skipped."""
    folder = REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}")
    return folder
