"""lurcher finds the slow GPU or link in a hybrid-parallel training job, proves it, and keeps the training going around it.

As a library: `lurcher.analyze(durations_s)` or `lurcher.analyze("train.log")` gives a verdict, `lurcher.Detector()` watches a loop online.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lurcher.analyze.library import analyze as analyze
    from lurcher.analyze.online import Detector as Detector

__version__ = "0.1.0"
__all__ = ["Detector", "__version__", "analyze"]


def __getattr__(name: str) -> Any:
    """Imported when first asked for, so that `import lurcher` stays light."""
    from importlib import import_module

    if name == "Detector":
        return import_module("lurcher.analyze.online").Detector
    if name == "analyze":
        return import_module("lurcher.analyze")
    raise AttributeError(f"module 'lurcher' has no attribute {name!r}")
