"""Iteration times out of other tools' files: one reader a format, recognised by content. `read_log` and `read_logs` are the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lurcher.ingest.log import Log as Log
    from lurcher.ingest.read import FORMATS as FORMATS
    from lurcher.ingest.read import read_log as read_log
    from lurcher.ingest.read import read_logs as read_logs

__all__ = ["FORMATS", "Log", "read_log", "read_logs"]


def __getattr__(name: str) -> Any:
    """Imported when first asked for: whoever needs one reader does not load the thirty others."""
    from importlib import import_module

    if name == "Log":
        return import_module("lurcher.ingest.log").Log
    if name in __all__:
        return getattr(import_module("lurcher.ingest.read"), name)
    raise AttributeError(f"module 'lurcher.ingest' has no attribute {name!r}")
